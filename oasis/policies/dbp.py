"""De-duplication, filtering and density-based pruning."""

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

NEIGHBOURS = 20  # other centroids that the distance between clusters is taken over


class DBP(Resumable):
    """Rule: drop near-duplicates and poorly matching images, then more from complex clusters, the
    most uncertain first.

    Source: Abbas et al. 2024, "Effective pruning of web-scale datasets based on complexity of
    concept clusters" (density-based pruning), with the semantic de-duplication (SemDeDup, 2023) and
    the CLIP-score filter of its pipeline. Original: inside each k-means cluster, of a pair of
    samples whose cosine is above a bound the one farther from the centroid stays; the half with the
    better image-text score stays; a cluster's share is softmax(d_inter d_intra / temperature) with
    d_inter the mean cosine distance of its centroid to the 20 nearest others and d_intra that of
    its members to it, a quadratic programme giving away what a cluster lacks; inside a cluster the
    hardest stay. The paper of our method takes those of highest entropy and a temperature of 0.5.

    Here: running spherical k-means; d_intra over the latest `pool` candidates; duplicates within
    the batch by the pair rule (one similar to any sample farther out), and also those of a sample
    of the pool that has been trained on, which cannot be taken back; the image-text score against
    the quantile of the pool's. What is dropped comes last rather than never, so that the budget is
    exact even where a batch holds nothing else. Shares by running credits (see `RunningQuotas`).

    Differences: features of the trained model, not of an image encoder; the score is the cosine
    within that model, not CLIP's; samples without an image pass the filter.

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering.
        clusters, warmup: see `RunningKMeans`; until the warm-up is over all is one cluster.
        temperature: of the softmax.
        bound: cosine above which two samples are duplicates.
        image_text_keep: fraction that passes the image-text filter, in (0, 1].
        pool: candidates kept to stand for the data set.
    """

    name = "dbp"
    gives_scores = False
    needs = frozenset({"features", "entropy", "image_text_score"})
    parts = ("kmeans", "quotas", "pool")

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        clusters: int = 32,
        warmup: int | None = None,
        temperature: float = 0.5,
        bound: float = 0.99,
        image_text_keep: float = 0.5,
        pool: int = 512,
    ):
        self.budget = Budget(ratio)
        self.kmeans = RunningKMeans(clusters, warmup, seed, spherical=True)
        self.quotas = RunningQuotas()
        infinity = float("inf")
        expected = "a finite number > 0"
        self.temperature = check_number("temperature", temperature, 5e-324, infinity, expected)
        self.bound = check_number("bound", bound, -1, 1, "a cosine in [-1, 1]")
        self.image_text_keep = check_number(
            "image_text_keep", image_text_keep, 5e-324, 1, "a number in (0, 1]"
        )
        self.pool = Pool(check_count("pool", pool, 1))

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (features, entropy) = finite_rows(self.name, signals, "features", "entropy")
        count, n = self.budget.take(len(rows)), len(rows)
        if n == 0:
            return outcome(signals, rows, skipped)
        matches = signals.image_text_score
        missing = torch.full((n,), float("nan"))
        matches = missing if matches is None else matches.detach().cpu().float()[rows]
        points = self.kmeans.points(features)
        self.kmeans.update(points)
        picked = torch.zeros(n, dtype=torch.bool)
        self.pool.add(points=points, matches=matches, picked=picked)
        label, _ = self.kmeans.assign(self.pool["points"])
        shares, label = self._shares(label), label[-n:]
        dropped = self._duplicates(points, label) | self._mismatched(matches)
        chosen: list[int] = []
        for group in (~dropped, dropped):
            slots = min(count - len(chosen), int(group.sum()))
            available = label[group].bincount(minlength=len(shares))
            for cluster, wanted in enumerate(self.quotas.split(slots, shares, available)):
                members = (group & (label == cluster)).nonzero().flatten()
                order = entropy[members].argsort(descending=True, stable=True)
                chosen += members[order[:wanted]].tolist()
        self.pool["picked"][-n:][chosen] = True
        return outcome(signals, rows[chosen], skipped)

    def _shares(self, label: Tensor) -> Tensor:
        """[K] share of each cluster that the pool has a member of."""
        centers, points = self.kmeans.centers.double(), self.pool["points"].double()
        k = len(centers)
        distance = 1 - centers @ centers.T
        nearest = min(NEIGHBOURS, k - 1)
        others = distance.fill_diagonal_(torch.inf).topk(nearest, largest=False).values
        inter = others.mean(dim=1) if nearest else torch.zeros(k, dtype=torch.float64)
        member = F.one_hot(label, k).double()
        size = member.sum(dim=0)
        own = 1 - (points * centers[label]).sum(dim=1)
        intra = (own @ member) / size.clamp(min=1)
        return softmax_shares(inter * intra, self.temperature, size > 0)

    def _duplicates(self, points: Tensor, label: Tensor) -> Tensor:
        """[n] bool: like a sample of the same cluster that is farther out (or as far and earlier),
        or like one that has been trained on.
        """
        n = len(points)
        out = -(points * self.kmeans.centers[label]).sum(dim=1)  # the farther, the larger
        rank = torch.empty(n, dtype=torch.int64)
        rank[out.argsort(descending=True, stable=True)] = torch.arange(n)
        alike = (points @ points.T > self.bound) & (label[:, None] == label[None, :])
        within = (alike & (rank[None, :] < rank[:, None])).any(dim=1)
        trained = self.pool["points"][self.pool["picked"]]
        return within | (points @ trained.T > self.bound).any(dim=1)

    def _mismatched(self, matches: Tensor) -> Tensor:
        """[n] bool: an image-text score below that of the pool's better part."""
        known = self.pool["matches"]
        known = known[known.isfinite()]
        if len(known) == 0:
            return torch.zeros(len(matches), dtype=torch.bool)
        return matches < known.quantile(1 - self.image_text_keep)


register("dbp", DBP)
