"""K-means that runs along with a stream, on scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from oasis.checks import check_count

from . import sklearn_private

if TYPE_CHECKING:
    from sklearn.cluster import MiniBatchKMeans

REFIT = 16  # batches between two runs of whole k-means


def check_warmup(clusters: int, warmup: int | None) -> int:
    """`warmup`, or 4 x `clusters` where it is None; ValueError where it is below `clusters`."""
    check_count("clusters", clusters, 1, bits=31)
    return 4 * clusters if warmup is None else check_count("warmup", warmup, clusters, bits=31)


class RunningKMeans:
    """Clusters of a stream: mini-batch k-means (Sculley 2010), and whole k-means now and then.

    Until `warmup` points have been seen there is one cluster, around their mean. Then k-means is
    run on those, and every further batch moves the centers, with a step of 1 / (points a center has
    had). Alone, that leaves the centers where the first task was: a later one moves a single center
    over, however many there are. So every 16 batches k-means is run again on the latest
    max(8 K, `warmup`) points, and the new centers take the numbers of the old ones they are nearest
    to (the assignment with the least sum of distances).

    Args:
        clusters: K.
        warmup: points to see before there are K clusters, >= K; None is 4 K.
        seed: of the generator.
        spherical: points and centers have unit length, so nearest is most similar by cosine.
    """

    def __init__(
        self, clusters: int, warmup: int | None = None, seed: int = 0, *, spherical: bool = False
    ):
        self.warmup = check_warmup(clusters, warmup)
        try:
            import sklearn.cluster  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "the policies that cluster need scikit-learn: pip install 'oasis-select[train]'"
            ) from error
        self.clusters = clusters
        self.seed = seed
        self.spherical = spherical
        self._latest: Tensor | None = None  # points, those of the warm-up first
        self._batches = 0  # since whole k-means was run
        self._model: MiniBatchKMeans | None = None

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over."""
        return self._model is not None

    @property
    def centers(self) -> Tensor:
        """[K, D] float32; before the end of the warm-up [1, D], [0, 0] before any point."""
        if self._model is not None:
            return torch.from_numpy(self._model.cluster_centers_)
        if self._latest is None:
            return torch.empty(0, 0)
        mean = self._latest.mean(dim=0, keepdim=True)
        return F.normalize(mean, dim=1) if self.spherical else mean

    def points(self, x: Tensor) -> Tensor:
        """`x` [n, D] as the clusters see it: float32, of unit length where spherical."""
        x = x.detach().to("cpu", torch.float32)
        return F.normalize(x, dim=1) if self.spherical else x

    def update(self, x: Tensor) -> None:
        """Take in the points [n, D]."""
        if len(x) == 0:
            return
        x = self.points(x).contiguous()
        latest = x if self._latest is None else torch.cat([self._latest, x])
        self._latest = latest[-max(8 * self.clusters, self.warmup) :]
        self._batches += 1
        if self._model is None:
            if len(self._latest) < self.warmup:
                return
            self._model = self._fit(self._latest)
        elif self._batches > REFIT:
            self._model = self._fit(self._latest)
        else:
            self._model.partial_fit(x.numpy())
        if self.spherical:
            centers = torch.from_numpy(self._model.cluster_centers_)
            self._model.cluster_centers_ = F.normalize(centers, dim=1).numpy()

    def assign(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest center [n] int64 and the Euclidean distance [n] to it, of the points [n, D]."""
        distances = torch.cdist(
            self.points(x), self.centers, compute_mode="donot_use_mm_for_euclid_dist"
        )
        distance, label = distances.min(dim=1)
        return label, distance

    def _fit(self, latest: Tensor) -> MiniBatchKMeans:
        """Whole k-means on the latest points, the result of which the mini-batches go on from."""
        from scipy.optimize import linear_sum_assignment
        from sklearn.cluster import k_means

        points, seed = latest.numpy(), self.seed % 2**32
        with warnings.catch_warnings():
            # Fewer distinct points than clusters: some centers coincide, which does no harm.
            warnings.filterwarnings("ignore", "Number of distinct clusters")
            centers: npt.NDArray[np.float32] = k_means(
                points,
                self.clusters,
                n_init=1,  # pyright: ignore[reportArgumentType] # their default is a text
                random_state=seed,
            )[0].astype(np.float32)
        if self._model is not None:
            distances = torch.cdist(self.centers, torch.from_numpy(centers))
            centers = centers[linear_sum_assignment(distances.numpy())[1]]
        self._batches = 0
        return self._from(centers, points)

    def _from(
        self, centers: npt.NDArray[np.float32], points: npt.NDArray[np.float32]
    ) -> MiniBatchKMeans:
        from sklearn.cluster import MiniBatchKMeans

        return MiniBatchKMeans(
            self.clusters,
            init=centers,  # pyright: ignore[reportArgumentType] # their defaults are texts
            n_init=1,  # pyright: ignore[reportArgumentType]
            batch_size=self.clusters,  # how far a batch counts towards putting centers elsewhere
            random_state=np.random.RandomState(self.seed % 2**32),
        ).partial_fit(points)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that `load_state_dict` goes on from, bit for bit."""
        common = {
            "seed": self.seed,
            "batches": self._batches,
            "latest": None if self._latest is None else self._latest.clone(),
        }
        model = None if self._model is None else sklearn_private.state_of(self._model)
        return {**common, "model": model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        latest, model = state["latest"], state["model"]
        self.seed, self._batches = int(state["seed"]), int(state["batches"])
        self._latest, self._model = None if latest is None else latest.cpu().clone(), None
        if model is None:
            return
        centers = model["centers"].cpu().numpy()
        self._model = self._from(centers, centers)  # a step that makes all attributes, then undone
        sklearn_private.load_state(self._model, model)
