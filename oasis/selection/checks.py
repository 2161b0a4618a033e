"""Checks of what is selected from: Gram matrices, masks, scores."""

from __future__ import annotations

import torch
from torch import Tensor


def check_gram(gram: object, name: str = "gram") -> Tensor:
    """`gram`, or an error that names it; its numbers are for the operators to judge."""
    if not isinstance(gram, Tensor) or not gram.dtype.is_floating_point:
        got = gram.dtype if isinstance(gram, Tensor) else type(gram).__name__
        raise TypeError(f"{name}: got {got}, expected a floating-point tensor [N, N]")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] == 0:
        raise ValueError(f"{name}: got shape {list(gram.shape)}, expected [N, N] with N >= 1")
    return gram.detach()


def check_valid(valid: object, n: int) -> None:
    """An error unless `valid` is a bool tensor [n]."""
    if not isinstance(valid, Tensor) or valid.dtype != torch.bool:
        got = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"valid: got {got}, expected a bool tensor [{n}]")
    if valid.shape != (n,):
        raise ValueError(f"valid: got shape {list(valid.shape)}, expected [{n}]")


def check_scores(scores: object, gram: Tensor) -> Tensor:
    """`scores` on the device of `gram` [N, N], or an error that names it."""
    if not isinstance(scores, Tensor) or scores.dtype != torch.float64:
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores: got {got}, expected a float64 tensor [{len(gram)}]")
    if scores.shape != (len(gram),):
        raise ValueError(f"scores: got shape {list(scores.shape)}, expected [{len(gram)}]")
    return scores.detach().to(gram.device)
