"""Prototypes by k-means."""

from __future__ import annotations

from oasis import Selection

from .base import Budget, Signals, outcome
from .kmeans import RunningKMeans
from .resumable import Resumable
from .valid import finite_rows


class SelfSup(Resumable):
    """Rule: by distance to the nearest k-means centroid of the final-layer features.

    Source: Sorscher et al. 2022, "Beyond neural scaling laws". Original: k-means once over the data
    set in the embedding space of a self-supervised encoder; a sample's difficulty is its distance
    to the nearest centroid, and one threshold on it keeps the hardest (where data are plenty) or
    the easiest. Here: running k-means of the trained model's own features, and of each batch the
    share of the budget with the smallest distance, clusters together, as the threshold was one.

    Differences: ranked within the batch, so that the budget is exact; `keep="near"` is the default,
    since that is what the paper of our method compares with ("far" is Sorscher's choice for plenty
    of data); features have unit length unless `spherical=False`, because the length of a language
    model's hidden state tells much of the text's length and little of its content; no balancing of
    classes, which a stream does not know.

    Args:
        ratio: fraction of the candidates to keep, in (0, 1].
        seed: of the clustering.
        keep: "near" or "far".
        clusters, warmup: see `RunningKMeans`; until the warm-up is over there is one centroid, the
            mean of what has been seen.
        spherical: whether features are scaled to unit length.
    """

    name = "selfsup"
    needs = frozenset({"features"})
    parts = ("kmeans",)

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

    def observe(self, signals: Signals) -> Selection:
        rows, skipped, (features,) = finite_rows(self.name, signals, "features")
        count = self.budget.take(len(rows))
        if len(rows) == 0:
            return outcome(signals, rows, skipped)
        self.kmeans.update(features)
        distance = self.kmeans.assign(features)[1]
        order = distance.argsort(descending=self.keep == "far", stable=True)
        return outcome(signals, rows[order[:count]], skipped)
