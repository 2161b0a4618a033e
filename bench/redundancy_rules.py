"""A_i(H) for a given H, literally: what is left of I_i once the samples in H have been learnt.

`oasis.siren` gives A at the moment of picking, for its own H. To compare rules on the same question
H is fixed here, and every rule of docs/method.md 2 answers it, by the equation (2^|H| subsets).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

ZERO_NORM = 1e-12  # docs/method.md 2.1


def none(gram: np.ndarray, picked: list[int]) -> np.ndarray:
    """I itself."""
    return gram.diagonal().copy()


def pairwise(gram: np.ndarray, picked: list[int]) -> np.ndarray:
    """The first sum of the equation alone."""
    return _inclusion_exclusion(gram, picked, 1)


def exact(gram: np.ndarray, picked: list[int]) -> np.ndarray:
    """The equation of docs/method.md 2."""
    return _inclusion_exclusion(gram, picked, len(picked))


def residual(gram: np.ndarray, picked: list[int], ridge: float = 0.0) -> np.ndarray:
    """K_ii - k_iH (K_HH + lambda 1)^-1 k_Hi, lambda = ridge x mean I over the batch."""
    rows = gram[:, picked]
    return np.maximum(
        none(gram, picked) - (rows * (rows @ _inverse(gram, picked, ridge))).sum(1), 0
    )


def fit(gram: np.ndarray, picked: list[int], ridge: float = 0.0) -> np.ndarray:
    """I_i (1 - k_iH (K_HH + lambda 1)^-1 I_H / I_i)^2: a linear model with features f_i of equal
    norm and errors r_i has g_i = r_i f_i; after (ridge) regression on the samples of H this is what
    is left of r_i^2 |f_i|^2. Signed: a sample opposed to those in H gains, where `residual` counts
    it as learnt.
    """
    raw = none(gram, picked)
    learnt = gram[:, picked] @ _inverse(gram, picked, ridge) @ raw[picked]
    return np.divide((raw - learnt) ** 2, raw, out=np.zeros_like(raw), where=raw > 0)


def step(gram: np.ndarray, picked: list[int], size: float = 0.1) -> np.ndarray:
    """I_i (1 - size mean_h K_ih / I_i)^2: the same model after one gradient step on H."""
    raw = none(gram, picked)
    learnt = size * gram[:, picked].mean(1)
    return np.divide((raw - learnt) ** 2, raw, out=np.zeros_like(raw), where=raw > 0)


def _inverse(gram: np.ndarray, picked: list[int], ridge: float) -> np.ndarray:
    shift = ridge * gram.diagonal().mean() * np.eye(len(picked))
    # Twins make the block singular where there is no ridge.
    return np.linalg.pinv(gram[np.ix_(picked, picked)] + shift, rcond=ZERO_NORM, hermitian=True)


def _inclusion_exclusion(gram: np.ndarray, picked: list[int], largest: int) -> np.ndarray:
    raw = gram.diagonal()
    norm = np.sqrt(raw)
    left = raw.copy()
    for size in range(1, largest + 1):
        for subset in map(list, combinations(picked, size)):
            square = gram[np.ix_(subset, subset)].sum()
            if square <= ZERO_NORM * norm[subset].sum() ** 2:
                continue  # the cosine with a mean that cancels is 0
            inner = gram[:, subset].sum(1) / np.sqrt(square)
            cosine = np.divide(inner, norm, out=np.zeros_like(norm), where=norm > 0)
            left += (-1) ** size * cosine * raw[subset].mean()
    return left


RIDGES = (0.0, 0.03, 0.1, 0.3, 1.0)
STEPS = (0.1, 0.3, 1.0)
RULES = {
    "none": (none, {}),
    "exact": (exact, {}),
    "pairwise": (pairwise, {}),
    **{f"residual {ridge:g}": (residual, {"ridge": ridge}) for ridge in RIDGES},
    **{f"fit {ridge:g}": (fit, {"ridge": ridge}) for ridge in RIDGES},
    **{f"step {size:g}": (step, {"size": size}) for size in STEPS},
}


def left_by(rule: str, gram: np.ndarray, picked: list[int]) -> np.ndarray:
    """A_i(H) [N] float64 by one of `RULES`, H = `picked`, from the Gram matrix [N, N]."""
    function, options = RULES[rule]
    return function(gram, picked, **options)
