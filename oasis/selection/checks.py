"""Checks of what is selected from: Gram matrices, masks, scores."""

from __future__ import annotations

import torch
from torch import Tensor

_SLACK = 0.01  # what a Gram matrix in low precision may miss Cauchy-Schwarz and symmetry by


def check_gram(gram: Tensor, name: str = "gram") -> Tensor:
    """`gram` as float64, or an error that names it."""
    if not isinstance(gram, Tensor) or not gram.dtype.is_floating_point:
        got = gram.dtype if isinstance(gram, Tensor) else type(gram).__name__
        raise TypeError(f"{name}: got {got}, expected a floating-point tensor [N, N]")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] == 0:
        raise ValueError(f"{name}: got shape {list(gram.shape)}, expected [N, N] with N >= 1")
    if (gram.diagonal() < 0).any():
        at = int((gram.diagonal() < 0).nonzero()[0])
        raise ValueError(
            f"{name}: negative diagonal {float(gram[at, at]):g} at {at}, expected squared norms"
        )
    gram = gram.detach().to(torch.float64)
    norms = gram.diagonal().sqrt()
    limit = torch.outer(norms, norms)
    excess = torch.maximum(gram.abs() - limit, (gram - gram.T).abs())
    if (wrong := excess > _SLACK * limit).any():
        i, j = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: got {float(gram[i, j]):g} at [{i}, {j}] and {float(gram[j, i]):g} at "
            f"[{j}, {i}] between squared norms {float(gram[i, i]):g} and {float(gram[j, j]):g}; "
            "expected inner products: symmetric, and at most the product of the norms"
        )
    return gram


def check_valid(valid: Tensor, n: int) -> None:
    """An error unless `valid` is a bool tensor [n]."""
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"valid: got {got}, expected a bool tensor [{n}]")
    if valid.shape != (n,):
        raise ValueError(f"valid: got shape {list(valid.shape)}, expected [{n}]")


def check_scores(scores: Tensor, gram: Tensor) -> Tensor:
    """`scores` on the device of `gram` [N, N], or an error that names it."""
    if not isinstance(scores, Tensor) or scores.dtype != torch.float64:
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores: got {got}, expected a float64 tensor [{len(gram)}]")
    if scores.shape != (len(gram),):
        raise ValueError(f"scores: got shape {list(scores.shape)}, expected [{len(gram)}]")
    if (scores < 0).any():
        at = int((scores < 0).nonzero()[0])
        raise ValueError(f"scores: got {float(scores[at]):g} at {at}, expected numbers >= 0")
    return scores.detach().to(gram.device)
