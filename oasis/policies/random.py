"""The baseline every selection method has to beat."""

from __future__ import annotations

import torch

from oasis import Selection

from .base import Budget, Signals, eligible, register, unscored
from .resumable import Resumable


class Random(Resumable):
    """Rule: uniform without replacement inside the candidate batch, ratio * N per batch on average.

    The count of a batch is what brings the running total to floor(ratio * candidates), so the
    budget is exact over the stream at every moment. Source: the "random" row of the paper.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator; the global one is never touched.
    """

    name = "random"
    needs: frozenset[str] = frozenset()
    parts = ("generator",)

    def __init__(self, ratio: float = 0.25, seed: int = 0):
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, signals: Signals) -> Selection:
        candidates = eligible(signals)
        count = self.budget.take(len(candidates))
        chosen = torch.randperm(len(candidates), generator=self.generator)[:count]
        mask = torch.zeros(signals.num_samples, dtype=torch.bool)
        mask[candidates[chosen]] = True
        return unscored(mask)


register("random", Random)
