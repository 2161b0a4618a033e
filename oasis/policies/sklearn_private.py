"""The private attributes of scikit-learn's `MiniBatchKMeans` that its state is made of, all here.

Checked against scikit-learn 1.3.0 (its source), 1.6.1 and 1.9.1 (tests/policies/test_clusters.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from sklearn.cluster import MiniBatchKMeans


def state_of(model: MiniBatchKMeans) -> dict[str, Any]:
    """Tensors and numbers that a `MiniBatchKMeans` goes on from, bit for bit."""
    random = model._random_state.get_state(legacy=False)
    twister = random["state"]
    return {
        "centers": torch.from_numpy(np.array(model.cluster_centers_)),
        "counts": torch.from_numpy(model._counts.copy()),
        "since_reassignment": int(model._n_since_last_reassign),
        "steps": int(model.n_steps_),
        "random": torch.from_numpy(twister["key"].astype(np.int64)),
        "random_rest": [int(twister["pos"]), int(random["has_gauss"]), float(random["gauss"])],
    }


def load_state(model: MiniBatchKMeans, state: Mapping[str, Any]) -> None:
    """Put such a state into a model that has been fitted (so that it has all its attributes)."""
    model.cluster_centers_ = state["centers"].cpu().numpy().copy()
    model._counts = state["counts"].cpu().numpy().copy()
    model._n_since_last_reassign = state["since_reassignment"]
    model.n_steps_ = state["steps"]
    key = state["random"].cpu().numpy().astype(np.uint32)
    model._random_state.set_state(("MT19937", key, *state["random_rest"]))
