"""Importance sampling by gradient norm."""

from __future__ import annotations

import torch

from oasis import Selection

from .base import Budget, Signals, gram_candidates, outcome, register
from .metrics import informativeness
from .resumable import Resumable


class GradNorm(Resumable):
    """Rule: draw samples with probability proportional to the norm of their gradient.

    Source: Katharopoulos & Fleuret 2018, "Not All Samples Are Created Equal". Original: from a
    presampled batch of N, draw k *with replacement*, p_i proportional to (an upper bound of) the
    gradient norm, and weigh each draw by 1 / (N p_i), so that the mean gradient of the draws is
    that of the batch in expectation; it does so once the variance saved exceeds a threshold.

    Online form: k *distinct* samples, one after the other with probability proportional to the
    norm among those left (an exponential race: sample i is drawn at time Exp(1) / p_i, the first k
    win; the same as Gumbel top-k). k brings the running total to floor(ratio * candidates).
    Differences: distinct draws, since a sample that is drawn twice would train on fewer samples at
    the same budget; the norm itself (the root of the Gram matrix's diagonal) instead of an upper
    bound of it; from the first batch on; and no weights unless `unbiased`, as the paper that ours
    compares with takes it for a rule of selection.

    `unbiased`: given the time t of the first sample that did *not* win, sample i had won with
    probability q_i = 1 - exp(-p_i t), whatever the others did. Weights (k / n) / q_i, n candidates,
    make (1 / k) sum of weight x gradient over the selected unbiased for the mean gradient of the n
    candidates, exactly (the bottom-k estimator of Cohen & Kaplan 2007, that of Kool et al. 2019 for
    Gumbel top-k). In training the sum is over tokens and divided by the number of selected tokens.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator; the global one is never touched.
        unbiased: whether the selection carries the weights above.
    """

    name = "gradnorm"
    needs = frozenset({"gram"})
    parts = ("generator",)

    def __init__(self, ratio: float = 0.25, seed: int = 0, *, unbiased: bool = False):
        if not isinstance(unbiased, bool):
            raise TypeError(f"unbiased: got {unbiased!r}, expected True or False")
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)
        self.unbiased = unbiased

    def observe(self, signals: Signals) -> Selection:
        gram, indices, skipped = gram_candidates(signals, self.name)
        n = len(indices)
        count = self.budget.take(n)
        norms = gram.diagonal().sqrt()
        largest = norms.max() if n else 0.0
        # Zero gradients come last, in random order; where all are zero the draw is uniform.
        rate = (norms / largest).clamp(min=1e-100) if largest > 0 else torch.ones_like(norms)
        times = torch.empty_like(rate).exponential_(generator=self.generator) / rate
        order = times.argsort()
        picks, weight = order[:count], None
        if self.unbiased:
            end = times[order[count]] if count < n else torch.inf
            weight = count / max(n, 1) / -torch.expm1(-rate[picks] * end)
        scores = informativeness(signals, "fisher", self.name)
        return outcome(signals, indices[picks], skipped, scores=scores, weight=weight)


register("gradnorm", GradNorm)
