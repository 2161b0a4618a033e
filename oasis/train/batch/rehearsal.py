"""A memory of rows seen in earlier batches, to measure the candidates against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oasis.names import IGNORED
from oasis.train.batch.columns import ENCODER
from oasis.train.batch.images import COUNT_KEYS, fill_images
from oasis.train.batch.memory import EpisodicMemory
from oasis.train.batch.subbatch import per_token, take, targets

MASK = f"{ENCODER}attention_mask"


class Rehearsal:
    """A reservoir of rows of earlier candidate batches, on the CPU, with its own generator.

    Rows are kept without the padding around them where that can be cut. Every row that has a label
    token is added, selected or not, so a draw is a fair sample of the stream so far.

    Args:
        capacity: rows kept.
        seed: of the reservoir and the draws.
    """

    def __init__(self, capacity: int = 256, seed: int = 0) -> None:
        self.memory = EpisodicMemory(capacity, seed)

    def add(self, batch: dict) -> None:
        """Take in the rows of a batch."""
        for row in targets(batch["labels"]).any(dim=1).nonzero().flatten().tolist():
            cut = take(batch, [row])
            self.memory.add({key: value.detach().cpu() for key, value in cut.items()})

    def draw(self, count: int) -> list[dict]:
        """At most `count` different rows, as batches of one; empty before the first `add`."""
        return self.memory.sample(min(count, len(self.memory))) if len(self.memory) else []

    def beside(self, batch: dict, count: int, *, pad_token_id: int = 0) -> dict:
        """The candidates with up to `count` rows of earlier batches below them; then the candidates
        themselves are taken in.
        """
        joined = join(batch, self.draw(count), pad_token_id=pad_token_id)
        self.add(batch)
        return joined

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(dict(state))


def _counted(part: dict, keys: set[str]) -> dict:
    """`part` with the counts that others have; without a count it has no image."""
    lacking = set(COUNT_KEYS) & keys - part.keys()
    none = part["labels"].new_zeros(len(part["labels"]))
    return {**part, **dict.fromkeys(lacking, none)}


def join(batch: dict, rows: list[dict], *, pad_token_id: int = 0) -> dict:
    """One batch of the N candidates of `batch` and `rows` (batches of one), in this order.

    What they are padded with goes to the right, where a causal model never looks. What an encoder
    is given is padded where it has a mask. Other tensors that do not have an entry for each token
    are put together along dimension 0. Rows without images get images of zeros where others have
    [N, images, C, H, W].

    Raises:
        ValueError: rows whose tensors do not go together with those of the batch.
    """
    fill = {"input_ids": pad_token_id, "labels": IGNORED}
    keys = set().union(batch, *rows)
    parts = fill_images([_counted(part, keys) for part in (batch, *rows)])
    length = max(part["labels"].shape[1] for part in parts)
    masks = [part[MASK] for part in parts if MASK in part]
    longest = max((mask.shape[1] for mask in masks), default=0)

    def pad(key: str, value: Tensor, part: dict) -> Tensor:
        if key in per_token(part):
            space = length - value.shape[1]
        elif key.startswith(ENCODER) and MASK in part and value.shape[:2] == part[MASK].shape:
            space = longest - value.shape[1]
        else:
            return value
        sides = *[0] * (2 * (value.ndim - 2)), 0, space
        return F.pad(value, sides, value=fill.get(key.removeprefix(ENCODER), 0))

    joined = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        values = [
            pad(key, part[key].to(batch["labels"].device), part) for part in parts if key in part
        ]
        if len({(value.shape[1:], value.dtype) for value in values}) > 1:
            raise ValueError(
                f"batch[{key!r}]: got {tuple(values[0].shape)}, but rows of earlier batches have "
                f"{[tuple(value.shape) for value in values[1:]]}; validation rows need one shape"
            )
        joined[key] = torch.cat(values)
    return joined
