"""Greedy selection for the loss on validation rows."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import Selection
from oasis.checks import check_count, check_number

from .base import Budget, Signals, gram_candidates, outcome, register
from .metrics import informativeness
from .resumable import Resumable


def descend(gram: Tensor, alignment: Tensor, count: int, rate: float) -> list[int]:
    """Greedy picks by rate <g_i, g_val> - rate^2 sum over the picks j of <g_i, g_j>."""
    gain = rate * alignment
    picks: list[int] = []
    for _ in range(count):
        a = int(gain.argmax())
        picks.append(a)
        gain = gain - rate**2 * gram[a]
        gain[picks] = -torch.inf
    return picks


class Greats(Resumable):
    """Rule: greedily the sample whose step, after those of the picks so far, lowers the loss on
    validation rows most: lr <g_i, g_val> - lr^2 sum_j <g_i, g_j> over the picks j.

    Source: Wang et al. 2024, "GREATS: Online Selection of High-Quality Data for LLM Training in
    Every Iteration". Original: the Taylor expansion of the validation loss after a step on the
    picks, the Hessian replaced by the identity; validation rows are a few held-out ones of the
    target task; lr is the optimizer's.

    Online form: g_val is the mean gradient of `validation` rows that the trainer draws from memory
    of rows seen earlier (nothing held out is looked at); last-layer gradients; k brings the running
    total to floor(ratio * candidates). While there are no such rows: uniform at random.
    Difference: `learning_rate=None` takes lr = 1 / k. With the optimizer's (say 3e-4) the second
    term is lost and the rule is top-k by alignment; with 1 / k a pick gains
    <g_i, g_val - sum_j g_j / k> / k: the mean gradient of the picks, which is what the trainer
    steps along, is led towards g_val (herding), whatever the scale of the gradients.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator.
        learning_rate: lr above, > 0; None is 1 / k.
        validation: rows to draw from memory for each batch.
    """

    name = "greats"
    needs = frozenset({"gram", "validation"})
    parts = ("generator",)

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        learning_rate: float | None = None,
        validation: int = 8,
    ):
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)
        if learning_rate is not None:
            check_number("learning_rate", learning_rate, 5e-324, float("inf"), "a number > 0")
        self.learning_rate = learning_rate
        self.validation = check_count("validation", validation, 1)

    def _alignment(self, signals: Signals, indices: Tensor) -> Tensor | None:
        """<g_i, g_val> [n], over the validation rows that are finite; None where there are none."""
        known = signals.validation_gram
        if known is None:
            return None
        if known.ndim != 2 or known.shape[0] != signals.num_samples:
            raise ValueError(
                f"signals.validation_gram: got shape {list(known.shape)}, expected "
                f"[{signals.num_samples}, M]"
            )
        known = known.detach().to("cpu", torch.float64)[indices]
        known = known[:, known.isfinite().all(dim=0)]
        return known.mean(dim=1) if known.shape[1] else None

    def observe(self, signals: Signals) -> Selection:
        gram, indices, skipped = gram_candidates(signals, self.name)
        alignment = self._alignment(signals, indices)
        count = self.budget.take(len(indices))
        if alignment is None:
            picks = torch.randperm(len(indices), generator=self.generator)[:count].tolist()
        else:
            rate = self.learning_rate or 1 / max(count, 1)
            picks = descend(gram, alignment, count, rate)
        scores = informativeness(signals, "fisher", self.name)
        return outcome(signals, indices[picks], skipped, scores=scores)


register("greats", Greats)
