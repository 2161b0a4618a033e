"""SIREN: every redundancy rule, subset by subset."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

ZERO_NORM = 1e-12  # ||S_U||^2 <= ZERO_NORM * (sum_u ||g_u||)^2 counts as zero


@dataclass
class SirenResult:
    """``adjusted [N]`` (score when picked; 0 if not valid), ``order`` (the picks), ``method``."""

    adjusted: Tensor
    order: Tensor
    method: str


def siren(
    gram: Tensor, *, method: str = "exact", ridge: float = 0.0, valid: Tensor | None = None
) -> SirenResult:
    """Greedy redundancy adjustment by literal enumeration of every subset of the picked samples.

    ``A_i(H) = I_i - sum_h cos(g_i, g_h) I_h
    + sum_{|U| >= 2} (-1)^|U| cos(g_i, mean_U g) mean_U I``; ``"pairwise"`` stops after the first
    sum, ``"mean_field"`` replaces ||sum_U g||^2 by its mean over the subsets of one size,
    ``"residual"`` is the Schur complement of K, ``"none"`` is I.
    """
    rules = {
        "exact": _exact,
        "mean_field": _mean_field,
        "pairwise": _pairwise,
        "residual": _residual,
        "none": _none,
    }
    if method not in rules:
        raise ValueError(f"method: got {method!r}, expected one of {sorted(rules)}")
    k = gram.detach().to(torch.float64).tolist()
    n = len(k)
    left = [i for i in range(n) if valid is None or bool(valid[i])]
    # Over a power of four near the largest squared norm: no digit changes, no sum overflows.
    _, exponent = math.frexp(max((k[i][i] for i in left), default=0.0))
    exponent -= exponent % 2
    for i in left:
        k[i] = [math.ldexp(k[i][j], -exponent) if j in left else 0.0 for j in range(n)]
    shift = ridge * sum(k[i][i] for i in left) / max(len(left), 1)
    adjusted = [0.0] * n
    picked: list[int] = []
    while left:
        scores = {i: rules[method](k, i, picked, shift) for i in left}
        best = max(left, key=lambda i: (scores[i], -i))
        adjusted[best] = math.ldexp(scores[best], exponent)
        picked.append(best)
        left.remove(best)
    return SirenResult(
        torch.tensor(adjusted, dtype=torch.float64), torch.tensor(picked, dtype=torch.int64), method
    )


def _cosine_with_mean(k, i, subset) -> float:
    """cos(g_i, mean of the subset's gradients); 0 where either is the zero vector."""
    square = math.fsum(k[u][v] for u in subset for v in subset)
    bound = math.fsum(math.sqrt(k[u][u]) for u in subset) ** 2
    if k[i][i] <= 0.0 or square <= ZERO_NORM * bound:
        return 0.0
    return math.fsum(k[i][u] for u in subset) / math.sqrt(k[i][i]) / math.sqrt(square)


def _none(k, i, picked, shift) -> float:
    return k[i][i]


def _pairwise(k, i, picked, shift) -> float:
    return math.fsum([k[i][i], *(-_cosine_with_mean(k, i, (h,)) * k[h][h] for h in picked)])


def _exact(k, i, picked, shift) -> float:
    terms = [k[i][i]]
    for size in range(1, len(picked) + 1):
        for subset in combinations(picked, size):
            mean = math.fsum(k[u][u] for u in subset) / size
            terms.append((-1) ** size * _cosine_with_mean(k, i, subset) * mean)
    return math.fsum(terms)


def _mean_field(k, i, picked, shift) -> float:
    """``I_i + sum_u w_u K_iu / ||g_i||``, w_u from the mean ||S_U||^2 over the U of one size."""
    if k[i][i] <= 0.0:
        return 0.0
    terms = [k[i][i]]
    for u in picked:
        others = [v for v in picked if v != u]
        n = len(others)
        mean = math.fsum(k[v][v] for v in others) / n if n else 0.0
        cross = math.fsum(k[u][v] for v in others) / n if n else 0.0
        pairs = math.fsum(k[v][x] for v in others for x in others if x != v)
        weight = -mean_field_sum(
            k[u][u],
            mean,
            k[u][u],
            mean + 2 * cross,
            pairs / (n * (n - 1)) if n > 1 else 0.0,
            n,
            bound=(math.sqrt(k[u][u]), math.fsum(math.sqrt(k[v][v]) for v in others) / (n or 1)),
        )
        terms.append(weight * k[i][u] / math.sqrt(k[i][i]))
    return math.fsum(terms)


def mean_field_sum(score, mean, square, linear, quadratic, n, bound=None, digits=80) -> float:
    """``sum_j (-1)^j C(n, j) (score + j mean) / ((j + 1) sqrt(q(j)))``, term by term.

    ``q(j) = square + linear j + quadratic j (j - 1)``, held to what the mean of squared norms can
    be: never falling (linear >= max(quadratic, 0)) and not negative at n. Terms reach 2^n, so the
    arithmetic carries ``digits`` beyond that. ``bound``: (||g_u||, mean of the others' norms).
    """
    import mpmath

    linear = max(linear, quadratic, 0.0)
    if n > 1:
        quadratic = max(quadratic, -(square / n + linear) / (n - 1))
    own, other = bound or (math.sqrt(square), math.sqrt(mean))
    with mpmath.workdps(digits + int(0.302 * n)):
        a, b, c = mpmath.mpf(square), mpmath.mpf(linear), mpmath.mpf(quadratic)
        total = mpmath.mpf(0)
        for j in range(n + 1):
            q = a + j * b + j * (j - 1) * c
            if q > ZERO_NORM * (own + j * other) ** 2:
                f = (mpmath.mpf(score) + j * mpmath.mpf(mean)) / ((j + 1) * mpmath.sqrt(q))
                total += (-1) ** j * math.comb(n, j) * f
        return float(total)


def _residual(k, i, picked, shift) -> float:
    """``K_ii - k_iH (K_HH + shift I)^-1 k_Hi``, by pseudo-inverse: twins make K_HH singular.

    The matrix is brought to a unit diagonal first, so that short gradients are not taken for zero.
    """
    if not picked:
        return k[i][i]
    square = torch.tensor([[k[u][v] for v in picked] for u in picked], dtype=torch.float64)
    square += shift * torch.eye(len(picked), dtype=torch.float64)
    row = torch.tensor([k[i][u] for u in picked], dtype=torch.float64)
    length = square.diagonal().sqrt()
    length[length == 0] = 1.0
    square = square / length / length.unsqueeze(1)
    row = row / length
    inverse = torch.linalg.pinv(square, rtol=ZERO_NORM, hermitian=True)
    return max(k[i][i] - float(row @ inverse @ row), 0.0)
