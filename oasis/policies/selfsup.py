"""Prototypes by k-means."""

from __future__ import annotations

import torch

from oasis import Selection

from .base import Budget, Signals, outcome, register
from .kmeans import RunningKMeans
from .quotas import RunningQuotas
from .resumable import Resumable
from .valid import finite_rows


class SelfSup(Resumable):
    """Rule: closest to each k-means centroid of the final-layer features in turn.

    Source: Sorscher et al. 2022, "Beyond neural scaling laws". Original: k-means once over the data
    set in the embedding space of a self-supervised encoder; a sample's difficulty is its distance
    to the nearest centroid, and one threshold on it keeps the hardest (where data are plenty) or
    the easiest. The paper of our method keeps the samples closest to their centroid.

    Here: running k-means of the trained model's own features. "near" gives every centroid the same
    share of the budget, by running credits (see `RunningQuotas`), and of its candidates takes the
    closest: one threshold over all clusters would take the tight ones, and starve whatever is new
    and still far from any centroid. "far" takes the share of each batch that is farthest from its
    centroid, clusters together, as the original does.

    Differences: ranked within the batch, so that the budget is exact; `keep="near"` is the default,
    as in the paper of our method ("far" is Sorscher's choice for plenty of data); features have
    unit length unless `spherical=False`, because the length of a language model's hidden state
    tells much of the text's length and little of its content; no balancing of classes, which a
    stream does not know.

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering.
        keep: "near" or "far".
        clusters, warmup: see `RunningKMeans`; until the warm-up is over there is one centroid, the
            mean of what has been seen.
        spherical: whether features are scaled to unit length.
    """

    name = "selfsup"
    gives_scores = False
    needs = frozenset({"features"})
    parts = ("kmeans", "quotas")

    def __init__(
        self,
        ratio: float = 0.25,
        seed: int = 0,
        *,
        keep: str = "near",
        clusters: int = 32,
        warmup: int | None = None,
        spherical: bool = True,
    ):
        if keep not in ("near", "far"):
            raise ValueError(f"keep: got {keep!r}, expected 'near' or 'far'")
        self.budget = Budget(ratio)
        self.keep = keep
        self.kmeans = RunningKMeans(clusters, warmup, seed, spherical=spherical)
        self.quotas = RunningQuotas()

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (features,) = finite_rows(self.name, signals, "features")
        count = self.budget.take(len(rows))
        if len(rows) == 0:
            return outcome(signals, rows, skipped)
        self.kmeans.update(features)
        label, distance = self.kmeans.assign(features)
        if self.keep == "far":
            order = distance.argsort(descending=True, stable=True)
            return outcome(signals, rows[order[:count]], skipped)
        equal = torch.ones(len(self.kmeans.centers))
        counts = self.quotas.split(count, equal, label.bincount(minlength=len(equal)))
        chosen: list[int] = []
        for cluster, slots in enumerate(counts):
            members = (label == cluster).nonzero().flatten()
            chosen += members[distance[members].argsort(stable=True)[:slots]].tolist()
        return outcome(signals, rows[chosen], skipped)


register("selfsup", SelfSup)
