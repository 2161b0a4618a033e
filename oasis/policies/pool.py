"""The latest candidates, as the stand-in for the data set that an offline method would look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Pool:
    """Columns of values of the last `capacity` candidates, oldest first.

    Candidates are drawn from a memory of all that has arrived, so the latest ones are a sample of
    the stream so far, seen by the model as it is now.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.columns: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def add(self, **columns: Tensor) -> None:
        """Append n rows to every column; the oldest go, but never one of these n."""
        for name, new in columns.items():
            old = self.columns.get(name)
            joined = new.clone() if old is None else torch.cat([old, new])
            self.columns[name] = joined[-max(self.capacity, len(new)) :]

    def state_dict(self) -> dict[str, Any]:
        return {name: column.clone() for name, column in self.columns.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.columns = {name: column.cpu().clone() for name, column in state.items()}
