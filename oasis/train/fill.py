"""`mode="fill"`: selected samples wait until a training batch is full."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from accelerate import skip_first_batches
from torch import Tensor
from transformers import TrainingArguments

from oasis.policies import Policy
from oasis.train.batch.images import COUNT_KEYS
from oasis.train.batch.rehearsal import join
from oasis.train.batch.subbatch import take
from oasis.train.names import MODES


def ratio_of(policy: Policy) -> float | None:
    """The share that a policy selects, where it, its budget or its selector says so."""
    for owner in (policy, getattr(policy, "selector", None), getattr(policy, "budget", None)):
        ratio = getattr(owner, "ratio", None)
        if ratio is not None:
            return float(ratio)
    return None


def check_mode(mode: str, args: TrainingArguments, policy: Policy) -> None:
    """ValueError for an unknown mode, and for what does not go with "fill"."""
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}, expected one of {', '.join(MODES)}")
    if mode == "step":
        return
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            raise ValueError(
                f"{name}: got 'epoch', but with mode='fill' a training batch is of several "
                "passes over the data as it comes; expected 'steps'"
            )
    if args.max_steps <= 0 and ratio_of(policy) is None:
        raise ValueError(
            f"max_steps: got {args.max_steps}, expected the number of steps, since mode='fill' "
            f"cannot tell it where the policy {policy.name!r} says no ratio"
        )


def planned_steps(args: TrainingArguments, policy: Policy, rows: int, batch_size: int) -> int:
    """Steps of full batches in which `num_train_epochs` passes over `rows` samples yield what the
    policy's ratio promises; at least 1.
    """
    ratio = ratio_of(policy)
    assert ratio is not None  # `check_mode` has looked
    each = batch_size * args.world_size * args.gradient_accumulation_steps
    return max(1, int(ratio * rows * args.num_train_epochs / each + 1e-9))


class Fill:
    """Selected samples that wait, and where in the stream of candidates they are from.

    The loader is gone through again and again, whatever the Trainer takes for an epoch.
    """

    def __init__(self) -> None:
        self.rows: list[dict] = []  # batches of one, on the CPU
        self.passes = self.fetched = 0  # whole passes, and candidate batches of this one
        self._stream: Iterator[dict] | None = None

    def batches(
        self,
        count: int,
        size: int,
        loader: Iterable,
        select: Callable[[dict], dict | None],
        everywhere: Callable[[bool], bool],
    ) -> list[dict]:
        """`count` batches of `size` selected rows each. `select` makes the selected rows of a
        candidate batch, None for none. Every process takes as many candidate batches as all need.

        Raises:
            ValueError: nothing was selected of a whole pass over the data.
        """
        if self._stream is None:
            self._stream = self._candidates(loader)
        found, last = len(self.rows), self.passes
        while not everywhere(len(self.rows) >= count * size):
            chosen = select(next(self._stream))
            if chosen is not None:
                self.rows += apart(chosen)
            if len(self.rows) > found:
                found, last = len(self.rows), self.passes
            elif self.passes > last + 1:
                raise ValueError("nothing was selected of a whole pass over the data")
        return [self._take(size) for _ in range(count)]

    def _take(self, size: int) -> dict:
        rows, self.rows = self.rows[:size], self.rows[size:]
        return join(rows[0], rows[1:])

    def _candidates(self, loader: Any) -> Iterator[dict]:
        while True:
            rest = skip_first_batches(loader, self.fetched) if self.fetched else loader
            set_epoch = getattr(rest, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self.passes)  # an order of its own, the same in every run
            # The start of a pass draws a seed; a resumed run restores the generator behind that.
            with torch.random.fork_rng(devices=[]):
                stream = iter(rest)
                first = list(islice(stream, 1))
            for batch in chain(first, stream):
                self.fetched += 1
                yield batch
            if not self.fetched:
                raise ValueError("train_dataset: got no candidate batch in a whole pass")
            self.passes, self.fetched = self.passes + 1, 0

    def state_dict(self) -> dict[str, Any]:
        rows = copy.copy(self.rows)
        return {"rows": rows, "passes": self.passes, "fetched": self.fetched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self._stream = list(state["rows"]), None
        self.passes, self.fetched = state["passes"], state["fetched"]


def apart(batch: dict) -> list[dict]:
    """The rows of a batch as batches of one on the CPU.

    Raises:
        ValueError: something that is no tensor, which cannot wait.
    """
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"batch[{key!r}]: got {type(value).__name__}, expected tensors alone "
                "with mode='fill'"
            )
    rows = (take(batch, [row]) for row in range(len(batch["labels"])))
    return [{k: v.detach().cpu() for k, v in row.items() if k not in COUNT_KEYS} for row in rows]
