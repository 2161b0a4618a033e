"""Train a few steps on part of a real batch, see what is left of the rest, and undo it all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from oasis.train import SelectionTrainer
from oasis.train.batch.subbatch import take, targets
from oasis.train.models import forward_parameters
from oasis.train.scoring import score

STEPS = (1, 3)
PICKED = 4
KINDS = ("random", "greedy", "planted")


@dataclass
class Probes:
    """What was measured on P batches of N candidates, |H| = `PICKED`, by number of `STEPS`.

    phase [P]: index of the part of the training. kind [P]: index into `KINDS`, how H was chosen.
    picked [P, |H|]: H. twins [P, N] bool: near-duplicates of a sample in H, planted. gram [P, N, N]
    before. after [P, steps, N]: I after steps on H. drift [P, steps, N]: I after as many optimizer
    steps with zero gradients, which move by the optimizer's momentum alone.
    """

    phase: np.ndarray
    kind: np.ndarray
    picked: np.ndarray
    twins: np.ndarray
    gram: np.ndarray
    after: np.ndarray
    drift: np.ndarray

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> Probes:
        with np.load(path) as file:
            return cls(**{field.name: file[field.name] for field in fields(cls)})


@contextmanager
def restoring(model: torch.nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Whatever is trained inside is undone bit for bit: weights, gradients, optimizer state, and
    torch's generators. Learning rates are not touched and not restored.
    """
    weights = [(p, p.detach().clone(), p.grad) for p in model.parameters() if p.requires_grad]
    state = {p: _copy(values) for p, values in optimizer.state.items()}
    for p, _, _ in weights:
        p.grad = None  # the gradient that is put back must not be added to
    try:
        with torch.random.fork_rng():
            yield
    finally:
        with torch.no_grad():
            for p, value, grad in weights:
                p.copy_(value)
                p.grad = grad
        optimizer.state.clear()
        optimizer.state.update(state)


def _copy(values: Mapping) -> dict:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}


class ProbingTrainer(SelectionTrainer):
    """Trains as ever, and measures candidate batches on the way: `phases` maps the number of a
    batch (from 0) to the phase it is to be measured for. `seed` is of the random H."""

    def __init__(self, *args, phases: Mapping[int, int], seed: int = 0, **kwargs):
        super().__init__(*args, **kwargs)
        self.phases = dict(phases)
        self.choice = random.Random(seed)
        self.measured: list[dict] = []

    def _select(self, batch: dict) -> dict:
        phase = self.phases.get(self.selection_counts.batches)
        chosen = super()._select(batch)  # with it, the head is inspected
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # under accelerate's
        moves = any(group["lr"] > 0 for group in optimizer.param_groups)
        if phase is not None and moves:
            known = forward_parameters(self.model) | {"labels"}
            batch = {k: v for k, v in self._prepare_inputs(batch).items() if k in known}
            if (targets(batch["labels"]).sum(1) > 0).all():  # else I is 0 and there is no rank
                self.measured += [
                    {"phase": phase, **one} for one in self._measure(batch, optimizer)
                ]
        return chosen

    def probes(self) -> Probes:
        if not self.measured:
            raise ValueError("probes: no batch was measured; expected a longer stream")
        stacked = {name: np.stack([m[name] for m in self.measured]) for name in self.measured[0]}
        return Probes(**stacked)

    def _measure(self, batch: dict, optimizer: Optimizer) -> Iterator[dict]:
        gram = self._gram(batch)
        n = len(gram)
        if n <= PICKED + 2:
            raise ValueError(f"batch_size: got {n}, expected more than {PICKED + 2}")
        by_score = sorted(range(n), key=lambda i: (-gram[i, i], i))
        at_random = self.choice.sample(range(n), PICKED)
        drift = self._trained(batch, None, optimizer)
        yield self._one("random", batch, gram, at_random, drift, optimizer)
        yield self._one("greedy", batch, gram, by_score[:PICKED], drift, optimizer)
        rest = [i for i in range(n) if i not in at_random]
        twins = self.choice.sample(rest, min(PICKED, len(rest) // 2))
        planted = plant(batch, dict(zip(twins, at_random, strict=False)))
        gram, drift = self._gram(planted), self._trained(planted, None, optimizer)
        yield self._one("planted", planted, gram, at_random, drift, optimizer, twins)

    def _one(self, kind, batch, gram, picked, drift, optimizer, twins=()) -> dict:
        return {
            "kind": KINDS.index(kind),
            "picked": np.array(picked),
            "twins": np.isin(np.arange(len(gram)), twins),
            "gram": gram,
            "after": self._trained(batch, picked, optimizer),
            "drift": drift,
        }

    def _gram(self, batch: dict) -> np.ndarray:
        return score(self.model, batch, self._head).gram.double().cpu().numpy()

    def _trained(self, batch: dict, picked: list[int] | None, optimizer: Optimizer) -> np.ndarray:
        """I [steps, N] after each number of `STEPS` on the rows `picked`, or of idle steps."""
        results = []
        with restoring(self.model, optimizer):
            for number in range(1, max(STEPS) + 1):
                self._step_on(None if picked is None else take(batch, picked), optimizer)
                if number in STEPS:
                    results.append(self._gram(batch).diagonal().copy())
        return np.stack(results)

    def _step_on(self, rows: dict | None, optimizer: Optimizer) -> None:
        """One step as the trainer takes it: its loss, clipping and learning rate."""
        weights = [p for p in self.model.parameters() if p.requires_grad]
        if rows is None:
            for p in weights:
                p.grad = torch.zeros_like(p)
        else:
            optimizer.zero_grad()
            self.model.train()
            items = targets(rows["labels"]).sum()
            self.compute_loss(self.model, rows, num_items_in_batch=items).backward()
            if self.args.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(weights, self.args.max_grad_norm)
        optimizer.step()


def plant(batch: dict, copies: Mapping[int, int]) -> dict:
    """`batch` with row i replaced by row `copies[i]` cut a little shorter: the first eighth of its
    tokens (at least one) become padding, as where the same text is truncated twice.
    """
    planted = {name: value.clone() for name, value in batch.items()}
    for row, source in copies.items():
        for name, value in batch.items():
            planted[name][row] = value[source]
        attended = batch["attention_mask"][source].nonzero().flatten()
        cut = attended[: max(1, len(attended) // 8)]
        pad = batch["input_ids"][(batch["attention_mask"] == 0)]
        planted["input_ids"][row, cut] = pad[0] if len(pad) else 0
        planted["attention_mask"][row, cut] = 0
    return planted
