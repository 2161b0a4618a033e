"""Pseudo-skills, each with the scorer that tells its samples apart best."""

from __future__ import annotations

import torch
from torch import Tensor

from oasis import Selection
from oasis.checks import check_count, check_number

from .base import Budget, Signals, outcome, register
from .kmeans import RunningKMeans
from .pool import Pool
from .quotas import RunningQuotas
from .resumable import Resumable
from .valid import finite_rows

SCORERS = ("perplexity", "entropy", "el2n")
BINS = 50  # of the histograms, and strata of the sampling


def histogram_entropy(scores: Tensor) -> float:
    """Entropy in bits of standardised scores [n] in 50 bins over four deviations either way; 0
    where all scores are equal.
    """
    deviation = scores.std(correction=0)
    if not deviation > 1e-12 * scores.abs().max():
        return 0.0
    z = ((scores - scores.mean()) / deviation).clamp(-4, 4)
    share = z.histc(BINS, -4, 4) / len(z)
    return float(-torch.special.xlogy(share, share).sum() / torch.log(share.new_tensor(2.0)))


def strata(scores: Tensor, reference: Tensor, tail: float) -> Tensor:
    """[n] int64: which of 50 equal parts of the score range each of `scores` lies in, where the
    range is that of `reference` without its lowest and highest `tail` of samples; -1 outside.
    """
    cut = int(len(reference) * tail)
    ordered = reference.sort().values
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    width = (high - low).clamp(min=1e-300) / BINS
    part = ((scores - low) / width).floor().clamp(0, BINS - 1).long()
    return part.masked_fill((scores < low) | (scores > high), -1)


class AdaptInf(Resumable):
    """Rule: an equal share for every pseudo-skill; inside, cover the range of the score that has
    the most to tell there.

    Source: Maharana et al. 2025, "Adapt-infinity: scalable continual multimodal instruction tuning
    via dynamic data selection". Original: at every time step, k-means on projected gradients of a
    middle layer makes pseudo-skill clusters; per cluster the scoring function whose histogram has
    the largest entropy is chosen out of perplexity, entropy, EL2N and image grounding; all clusters
    get the same budget, what one lacks going to the others; inside, coverage-centric sampling
    (Zheng 2023): the 5 % tails are cut, the range is divided into strata, and these are filled
    equally, at random.

    Here: running spherical k-means of sketched gradients of the middle trained block; histograms,
    tails and strata from the latest `pool` candidates; a slot goes to the stratum of which fewest
    have been picked among those (ties at random), so that the range is covered over the stream;
    tails come last rather than never, so that the budget is exact. Shares by running credits (see
    `RunningQuotas`).

    Differences: no image-grounding score, which takes a second forward without the image; no
    permanent pruning of the pool, since the memory belongs to the stream. Perplexity counts by its
    logarithm, as in the authors' code.

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering and the sampling.
        clusters, warmup: see `RunningKMeans`; until the warm-up is over all is one cluster.
        tail: fraction cut at either end of a cluster's scores, in [0, 0.5).
        pool: candidates kept to stand for the data set.
    """

    name = "adapt_inf"
    gives_scores = False
    needs = frozenset({"middle_grads", "loss", "entropy", "el2n"})
    parts = ("kmeans", "quotas", "pool", "generator")

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        clusters: int = 20,
        warmup: int | None = None,
        tail: float = 0.05,
        pool: int = 512,
    ):
        self.budget = Budget(ratio)
        self.kmeans = RunningKMeans(clusters, warmup, seed, spherical=True)
        self.quotas = RunningQuotas()
        self.tail = check_number("tail", tail, 0, 0.4999, "a number in [0, 0.5)")
        self.pool = Pool(check_count("pool", pool, 1))
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (grads, *each) = finite_rows(
            self.name, signals, "middle_grads", "loss", "entropy", "el2n"
        )
        count, n = self.budget.take(len(rows)), len(rows)
        if n == 0:
            return outcome(signals, rows, skipped)
        points = self.kmeans.points(grads)
        self.kmeans.update(points)
        scores = torch.stack([score.double() for score in each], dim=1)
        picked = torch.zeros(n, dtype=torch.bool)
        self.pool.add(points=points, scores=scores, picked=picked)
        label = self.kmeans.assign(self.pool["points"])[0]
        present = label.bincount(minlength=len(self.kmeans.centers))
        available = label[-n:].bincount(minlength=len(present))
        counts = self.quotas.split(count, (present > 0).double(), available)
        order = torch.randperm(n, generator=self.generator)  # decides between equals
        chosen: list[int] = []
        for cluster, slots in enumerate(counts):
            if slots:
                chosen += self._cover(label == cluster, slots, order, n)
        return outcome(signals, rows[chosen], skipped)

    def _cover(self, inside: Tensor, slots: int, order: Tensor, n: int) -> list[int]:
        """`slots` of the last n of the pool that are `inside` [P] the cluster."""
        scores, picked = self.pool["scores"], self.pool["picked"]
        best = max(range(len(SCORERS)), key=lambda s: histogram_entropy(scores[inside, s]))
        part = strata(scores[:, best], scores[inside, best], self.tail)
        filled = part[inside & picked & (part >= 0)].bincount(minlength=BINS)
        first = len(part) - n
        left = [int(i) for i in order if inside[first + i]]
        chosen = []
        for _ in range(slots):
            at = {i: int(part[first + i]) for i in left}
            one = min(left, key=lambda i: (at[i] < 0, int(filled[at[i]])))
            left.remove(one)
            chosen.append(one)
            picked[first + one] = True
            filled[at[one]] += at[one] >= 0
        return chosen


register("adapt_inf", AdaptInf)
