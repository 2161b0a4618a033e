"""What later selections depend on: saved with checkpoints, and anew with every training."""

from __future__ import annotations

import copy
import os
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from oasis import Selector
from oasis.policies import Policy
from oasis.policies.base import wants_length
from oasis.train.batch.rehearsal import Rehearsal
from oasis.train.events import Counts
from oasis.train.fill import Fill
from oasis.train.last_scores import LastScores

logger = logging.get_logger(__name__)


class SelectionState:
    """A policy, what it has chosen so far on this process, and the rows it is measured against.

    Args:
        policy: as the caller made it; each training starts with the state it has now.
        process, processes: the number of this process, and how many train together.
        seed: of the rehearsal's draws.
        fill: selected samples that wait, with mode="fill".
        last: scores of the candidates that have been scored, with `rescore`.
    """

    def __init__(
        self,
        policy: Policy,
        process: int,
        processes: int,
        seed: int,
        fill: Fill | None = None,
        last: LastScores | None = None,
    ) -> None:
        self.policy, self.fill, self.last = policy, fill, last
        self.process, self.processes = process, processes
        self.counts = Counts()
        self.rehearsal = Rehearsal(seed=seed) if "validation" in policy.needs else None
        self._first = copy.deepcopy(self._changing())
        self._scheduled = policy if wants_length(policy) else None

    def _changing(self) -> dict[str, Any]:
        state = {"policy": dict(self.policy.state_dict()), "counts": asdict(self.counts)}
        if self.rehearsal is not None:
            state["rehearsal"] = self.rehearsal.state_dict()
        if self.fill is not None:
            state["fill"] = self.fill.state_dict()
        if self.last is not None:
            state["last"] = self.last.state_dict()
        return state

    def _change(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        vars(self.counts).update(state["counts"])
        if self.rehearsal is not None and "rehearsal" in state:
            self.rehearsal.load_state_dict(state["rehearsal"])
        if self.fill is not None:
            self.fill.load_state_dict(state["fill"])
        if self.last is not None and "last" in state:
            self.last.load_state_dict(state["last"])

    def anew(self) -> None:
        """As it was before any training; the policy is given the length of the next one."""
        self._change(copy.deepcopy(self._first))
        if self._scheduled is not None:
            self._scheduled.total_batches = None

    def save(self, checkpoint: str) -> None:
        """Into a checkpoint, one file for each process."""
        state = {"name": self.policy.name, "processes": self.processes, **self._changing()}
        torch.save(state, self._file(checkpoint))

    def load(self, checkpoint: str) -> None:
        """From a checkpoint, behind `anew`. With another number of processes each goes on from its
        own file, where it has one, and says so.

        Raises:
            ValueError: a checkpoint of another policy, or of another mode.
        """
        path = self._file(checkpoint)
        if not os.path.isfile(path):
            logger.warning("no %s: selection starts anew, not where it stopped", path)
            return
        state = torch.load(path, weights_only=True)
        if state["name"] != self.policy.name:
            raise ValueError(
                f"policy: got {self.policy.name!r}, but {path} was saved by {state['name']!r}"
            )
        if (self.fill is None) == ("fill" in state):
            modes = ("step", "fill")[:: 1 if self.fill is None else -1]
            raise ValueError(f"mode: got {modes[0]!r}, but {path} was saved with {modes[1]!r}")
        if (before := state.get("processes", self.processes)) != self.processes:
            logger.warning(
                "%s was saved by %d processes and is resumed by %d: each goes on with the policy "
                "and the counts of the process of its number, new ones start anew, and what the "
                "others had chosen is no longer counted",
                checkpoint,
                before,
                self.processes,
            )
        self._change(state)

    def _file(self, checkpoint: str) -> str:
        return os.path.join(checkpoint, f"selection_state_{self.process}.pt")


def keep_selectors_apart(model: nn.Module) -> None:
    """Have DDP leave the states of selectors inside `model` alone, which are each process's own,
    when it makes the buffers of all processes those of the first.
    """
    names = [
        f"{name}.{buffer}"
        for name, module in model.named_modules()
        if isinstance(module, Selector)
        for buffer, _ in module.named_buffers()
    ]
    if names:
        known = getattr(model, "_ddp_params_and_buffers_to_ignore", [])
        # torch types what is set on a module as tensors and modules.
        model._ddp_params_and_buffers_to_ignore = [*known, *names]  # type: ignore[assignment]
