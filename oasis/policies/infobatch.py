"""Unbiased pruning of samples with a small loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch

from oasis import Selection
from oasis.checks import check_count, check_number

from .base import Budget, Signals, candidates, outcome, register, required
from .resumable import Resumable


class InfoBatch(Resumable):
    """Rule: drop samples with a loss below the running mean at random, and make up for it by
    weighing those that stay by 1 / (probability to stay).

    Source: Qin et al. 2024, "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
    Pruning". Original, per epoch: samples whose last loss is below the mean loss of the data set
    stay with probability 1 - r (r = 0.5), weighted by 1 / (1 - r), all others stay with weight 1;
    no pruning in the last 12.5 % of the epochs. How many remain is not prescribed.

    Online form, on n candidates of which k are to stay (k brings the running total to the budget):
    - The mean is a running one over the batches before (the first batch is judged by its own).
    - The below-mean samples stay with the probability that meets the budget, (k - above) / below,
      and all above-mean ones stay, as long as that probability is at least `keep` (1 - r = 0.5).
    - At smaller budgets the above-mean ones must be thinned too. Both groups then are, uniformly,
      with the probabilities kept at 1 : keep, so that nothing has probability zero: this is the
      original's rule with its own r followed by uniform thinning. `keep=0` reads it the other way:
      no below-mean sample as long as the above-mean ones fill the budget, which is not unbiased.
    - Weights are (k / n) / (probability to stay): inside a batch they are in the original's ratio,
      and (1 / k) sum of weight x gradient over the selected is unbiased for the mean gradient of
      the candidates. The common factor k / n is there because the original makes up for larger
      gradients by fewer steps, while here every batch of candidates has its step.
    - No unpruned end by default (`anneal=0`), where the original has 12.5 %: under a fixed budget
      whole batches at the end are paid for by all before, and at 25 % the end would cost half of
      the budget, at the lowest learning rates. With `anneal` and `total_batches` known, the last
      `anneal` of the batches are not pruned, and the batches before get what remains, so that the
      total is still the budget (exactly, where those last batches have as many candidates as the
      batches before on average; it is never exceeded, at any moment). The unpruned part is at most
      ratio / 2 of the batches, that is half of the budget.

    Args:
        ratio: fraction of the candidates (samples with a label token) to keep, in (0, 1].
        seed: seed of the policy's own generator; the global one is never touched.
        keep: smallest probability to stay of a below-mean sample over that of an above-mean one.
        momentum: of the running mean, per batch; the weight of the newest batch is 1 - momentum.
        anneal: share of the batches, at the end, that is not pruned; the original's is 0.125.
        total_batches: candidate batches of the stream; None where it is not known (no unpruned
            end then). May be set later, as an attribute; the trainer does so where it is None when
            a training begins.
    """

    name = "infobatch"
    gives_scores = False
    needs = frozenset({"loss"})
    parts = ("generator",)

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        keep: float = 0.5,
        momentum: float = 0.9,
        anneal: float = 0.0,
        total_batches: int | None = None,
    ):
        self.budget = Budget(ratio)
        self.generator = torch.Generator().manual_seed(seed)
        self.keep = check_number("keep", keep, 0, 1, "a number in [0, 1]")
        self.momentum = check_number("momentum", momentum, 0, 1, "a number in [0, 1]")
        anneal = check_number("anneal", anneal, 0, 1, "a number in [0, 1]")
        self.anneal = Fraction(anneal).limit_denominator(1_000_000)
        if total_batches is not None:
            check_count("total_batches", total_batches, 1)
        self.total_batches = total_batches
        self.batches = 0
        self.judged = 0  # batches that the mean has seen
        self.mean = 0.0

    def _count(self, n: int) -> int:
        """How many of the n candidates of batch number `self.batches` may stay."""
        if self.total_batches is None:
            return self.budget.take(n)
        total, ratio = self.total_batches, self.budget.ratio
        whole = math.floor(min(self.anneal, ratio / 2) * total)  # batches without pruning
        if self.batches >= total - whole:
            return self.budget.take(n)
        return self.budget.take(n, (ratio * total - whole) / (total - whole))

    def observe(self, signals: Signals) -> Selection:
        loss = required(signals, "loss", self.name)
        indices, skipped = candidates(signals, loss)
        n = len(indices)
        count = self._count(n)
        losses = loss[indices]
        own = float(losses.mean()) if n else 0.0
        below = losses < (self.mean if self.judged else own)
        picks, weight = self._draw(below, count)
        self.batches += 1
        if n:
            self.judged += 1
            self.mean += (own - self.mean) * max(1 / self.judged, 1 - self.momentum)
        return outcome(signals, indices[picks], skipped, weight=weight)

    def _draw(self, below: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` of the samples, and the weights of those."""
        low, high = below.nonzero().flatten(), (~below).nonzero().flatten()
        rounding = float(torch.rand((), generator=self.generator, dtype=torch.float64))
        low, high = (x[torch.randperm(len(x), generator=self.generator)] for x in (low, high))
        reach = len(high) + self.keep * len(low)
        if count >= reach:
            expected = float(count - len(high))
        else:
            expected = count * self.keep * len(low) / reach
        # A whole number at random, so that each group has its probability exactly.
        stay = math.floor(expected) + (rounding < expected % 1)
        share_low = expected / max(len(low), 1)
        share_high = (count - expected) / max(len(high), 1)
        picks = torch.cat([high[: count - stay], low[:stay]])
        share = torch.cat(
            [
                torch.full((count - stay,), share_high, dtype=torch.float64),
                torch.full((stay,), share_low, dtype=torch.float64),
            ]
        )
        return picks, count / max(len(below), 1) / share

    def state_dict(self) -> dict[str, Any]:
        own = {"batches": self.batches, "judged": self.judged, "mean": self.mean}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.batches, self.judged = int(state["batches"]), int(state["judged"])
        self.mean = float(state["mean"])


register("infobatch", InfoBatch)
