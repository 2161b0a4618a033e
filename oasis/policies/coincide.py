"""Concept clusters by transferability and density."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oasis import Selection
from oasis.checks import check_count, check_number

from .base import Budget, Signals, outcome, register
from .kmeans import RunningKMeans
from .pool import Pool
from .quotas import RunningQuotas, softmax_shares
from .resumable import Resumable
from .valid import finite_rows


def embed(features: Tensor) -> Tensor:
    """[n, layers x D] of unit length, of [n, layers, D]: tanh, then each layer to one length."""
    return F.normalize(F.normalize(features.float().tanh(), dim=2).flatten(1), dim=1)


class Coincide(Resumable):
    """Rule: more from clusters that transfer to others and are not dense; inside, cover them.

    Source: Lee et al. 2024, "Concept-skill transferability-based data selection for large
    vision-language models" (COINCIDE). Original: spherical k-means (K = 10,000) over the data set
    on tanh-normalised features of five layers of a small model; cluster i has transferability S_i,
    the mean cosine of its centroid with the others, and density D_i, the mean Gaussian kernel over
    its pairs; its share is softmax(S_i / (0.1 D_i)), what it lacks going to the others; inside it,
    greedy minimisation of the squared maximum mean discrepancy (MMD) between picked and cluster.

    Here: running spherical k-means; density, and the population that the MMD is taken with, from
    the latest `pool` candidates, assigned to the centroids as they now stand; the samples of a
    cluster that were picked earlier count as picked in the MMD, so that a cluster is covered over
    the stream and not anew in each batch; shares by running credits (see `RunningQuotas`).

    Differences: features of the trained model itself, as means over all tokens of a sample rather
    than image and text apart; K fits a stream. (The authors' code leaves centroids with a cosine
    above 0.9 out of S_i; the equation, followed here, does not.)

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering.
        clusters, warmup: see `RunningKMeans`; until the warm-up is over all is one cluster.
        temperature: of the softmax.
        bandwidth: sigma of the kernel exp(-|u - v|^2 / (2 sigma^2)); features have unit length.
        pool: candidates kept to stand for the data set.
    """

    name = "coincide"
    gives_scores = False
    needs = frozenset({"features_multi"})
    parts = ("kmeans", "quotas", "pool")

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        clusters: int = 64,
        warmup: int | None = None,
        temperature: float = 0.1,
        bandwidth: float = 1.0,
        pool: int = 512,
    ):
        self.budget = Budget(ratio)
        self.kmeans = RunningKMeans(clusters, warmup, seed, spherical=True)
        self.quotas = RunningQuotas()
        positive = 5e-324, float("inf"), "a finite number > 0"
        self.temperature = check_number("temperature", temperature, *positive)
        self.bandwidth = check_number("bandwidth", bandwidth, *positive)
        self.pool = Pool(check_count("pool", pool, 1))

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (features,) = finite_rows(self.name, signals, "features_multi")
        count, n = self.budget.take(len(rows)), len(rows)
        if n == 0:
            return outcome(signals, rows, skipped)
        points = embed(features)
        self.kmeans.update(points)
        self.pool.add(points=points, picked=torch.zeros(n, dtype=torch.bool))
        label = self.kmeans.assign(self.pool["points"])[0]
        kernel = self._kernel()
        shares = self._shares(label, kernel)
        counts = self.quotas.split(count, shares, label[-n:].bincount(minlength=len(shares)))
        chosen: list[int] = []
        first = len(label) - n  # of this batch in the pool
        for cluster, slots in enumerate(counts):
            for _ in range(slots):
                best = self._closest(kernel, label == cluster, first)
                self.pool["picked"][best] = True
                chosen.append(int(rows[best - first]))
        return outcome(signals, torch.tensor(chosen, dtype=torch.int64), skipped)

    def _kernel(self) -> Tensor:
        """[P, P] float64, Gaussian kernel of the pool."""
        points = self.pool["points"]
        squared = (2 - 2 * (points @ points.T).double()).clamp(min=0)  # of unit length
        return (squared / (-2 * self.bandwidth**2)).exp().fill_diagonal_(1)

    def _shares(self, label: Tensor, kernel: Tensor) -> Tensor:
        """[K] share of each cluster that the pool has a member of."""
        centers = self.kmeans.centers.double()
        k = len(centers)
        cosine = centers @ centers.T
        transfer = (cosine.sum(dim=1) - cosine.diagonal()) / max(k - 1, 1)
        member = F.one_hot(label, k).double()
        size = member.sum(dim=0)
        pairs = ((member.T @ kernel) * member.T).sum(dim=1) - size
        density = torch.where(size > 1, pairs / (size * (size - 1)).clamp(min=1), 1.0)
        # Points so far apart that the kernel underflows: as good as not dense at all.
        return softmax_shares(transfer / density.clamp(min=1e-12), self.temperature, size > 0)

    def _closest(self, kernel: Tensor, inside: Tensor, first: int) -> int:
        """The candidate (an index into the pool) of the cluster `inside` [P] with which what has
        been picked of it comes closest to it, by squared MMD; ties: the first.
        """
        picked = self.pool["picked"]
        fresh = inside & ~picked
        fresh[:first] = False
        candidates = fresh.nonzero().flatten()
        earlier = inside & picked
        size = int(earlier.sum()) + 1
        within = (
            kernel[earlier][:, earlier].sum()
            + 2 * kernel[candidates][:, earlier].sum(dim=1)
            + kernel[candidates, candidates]
        ) / size**2
        population = kernel[:, inside].mean(dim=1)
        across = (population[earlier].sum() + population[candidates]) / size
        return int(candidates[(within - 2 * across).argmin()])


register("coincide", Coincide)
