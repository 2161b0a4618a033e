"""The state of a policy that is made of a budget and parts with states of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .base import Budget


class Resumable:
    """Gives a policy `state_dict` and `load_state_dict`.

    The state is that of its `budget`, and under their names those of the attributes `parts`:
    generators, or anything with these two methods.
    """

    parts: tuple[str, ...] = ()
    budget: Budget

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.budget.state_dict()
        for name in self.parts:
            part = getattr(self, name)
            generator = isinstance(part, torch.Generator)
            state[name] = part.get_state() if generator else part.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.budget.load_state_dict(state)
        for name in self.parts:
            part = getattr(self, name)
            if isinstance(part, torch.Generator):
                part.set_state(state[name].cpu())
            else:
                part.load_state_dict(state[name])
