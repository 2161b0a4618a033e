"""Diversified batch selection: samples that together span the batch's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import Selection

from .base import Budget, Signals, gram_candidates, outcome, register
from .metrics import informativeness
from .resumable import Resumable

# Relative to the norms: below this a correlation, or what a gradient adds to the span, is rounding.
_VANISHING = 1e-10


def representatives(gram: Tensor, count: int, fill: Tensor) -> list[int]:
    """The greedy picks from a Gram matrix [n, n] (float64); `fill` is the order in which samples
    come when nothing of the batch's gradient is left.
    """
    norms = gram.diagonal().sqrt()
    scale = norms * norms.sum()
    correlation = gram.sum(dim=1)  # of each gradient with the residual of the batch's sum
    basis = gram.new_zeros(0, len(gram))  # row m: inner products with the m-th orthonormal vector
    left = torch.ones(len(gram), dtype=torch.bool)
    picks: list[int] = []
    while len(picks) < count:
        strength = torch.where(left, correlation.abs(), -1.0)
        a = int(strength.argmax())
        if strength[a] <= _VANISHING * scale[a]:
            rest = [i for i in fill.tolist() if left[i]]
            return picks + rest[: count - len(picks)]
        picks.append(a)
        left[a] = False
        row = gram[a] - basis[:, a] @ basis
        if row[a] > _VANISHING * gram[a, a]:
            row = row / row[a].sqrt()
            # The residual is orthogonal to all earlier vectors: what it has along the new one is
            # <g_a, residual> over the norm of g_a's part that is orthogonal to them.
            correlation = correlation - row * (correlation[a] / row[a])
            basis = torch.cat([basis, row.unsqueeze(0)])
    return picks


class DivBS(Resumable):
    """Rule: greedily the sample whose gradient correlates most with what the picks so far leave of
    the batch's gradient.

    Source: Hong et al. 2024, "Diversified Batch Selection for Training Acceleration". Original:
    maximise sum_e <e, sum_i g_i> over orthonormal bases e of the selected gradients' span; greedy:
    pick the largest |<g_i, residual>|, orthogonalise it against the earlier picks (Gram-Schmidt),
    take its direction out of the residual, repeat; once nothing correlates, the rest at random.

    Online form: the same on every candidate batch, with the whole batch's summed gradient as the
    residual to begin with; on the Gram matrix alone (pivoted Cholesky), without any gradient. k
    brings the running total to floor(ratio * candidates). Differences: gradients of the last layer
    in full, where the original may subsample their coordinates; a pick is the largest correlation
    as in the paper's algorithm (the authors' code draws in proportion to it).

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator, for picks after the residual has vanished.
    """

    name = "divbs"
    needs = frozenset({"gram"})
    parts = ("generator",)

    def __init__(self, ratio: float = 0.25, seed: int = 0):
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, signals: Signals) -> Selection:
        gram, indices, skipped = gram_candidates(signals, self.name)
        count = self.budget.take(len(indices))
        fill = torch.randperm(len(indices), generator=self.generator)
        picks = indices[representatives(gram, count, fill)]
        scores = informativeness(signals, "fisher", self.name)
        return outcome(signals, picks, skipped, scores=scores)


register("divbs", DivBS)
