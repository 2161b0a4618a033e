"""Samples of the answer that has been trained on least: what selection gains by counting alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oasis import Selection

from .base import Budget, Signals, eligible, register, required, unscored
from .resumable import Resumable


class Balanced(Resumable):
    """Rule: one after the other, a candidate whose answer has been selected least often so far.

    No forward is run: an answer is known by its label tokens. Ties are broken at random. The count
    of a batch is what brings the running total to floor(ratio * candidates). Where every answer is
    another one (free text) it is random selection. Source: class-balanced sampling (e.g. Shen et
    al. 2016, Relay backpropagation); counts of what has been trained on replace its schedule.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator; the global one is never touched.
    """

    name = "balanced"
    needs: frozenset[str] = frozenset()
    parts = ("generator", "counts")

    def __init__(self, ratio: float = 0.25, seed: int = 0):
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)
        self.counts = Counts()

    def observe(self, signals: Signals) -> Selection:
        answers = required(signals, "answer", self.name, torch.int64).tolist()
        rows = eligible(signals)
        shuffled = rows[torch.randperm(len(rows), generator=self.generator)].tolist()
        mask = torch.zeros(signals.num_samples, dtype=torch.bool)
        for _ in range(self.budget.take(len(rows))):
            row = min(shuffled, key=lambda row: self.counts.of[answers[row]])
            shuffled.remove(row)
            self.counts.of[answers[row]] += 1
            mask[row] = True
        return unscored(mask)


class Counts:
    """How often each answer has been selected."""

    def __init__(self) -> None:
        self.of: Counter[int] = Counter()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "answer": torch.tensor(list(self.of), dtype=torch.int64),
            "count": torch.tensor(list(self.of.values()), dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pairs = zip(state["answer"].tolist(), state["count"].tolist(), strict=True)
        self.of = Counter(dict(pairs))


register("balanced", Balanced)
