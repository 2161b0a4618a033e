"""Symmetric products kept as lower halves, and sums over the segments that samples are."""

from __future__ import annotations

import torch
from torch import Tensor


def add_lower_products(out: Tensor, rows: Tensor) -> None:
    """out += rows rows^T, in tiles; the strict upper half of off-diagonal tiles is left alone."""
    # A narrow tile wastes less of its square on the upper half, but reads its operand more often.
    tile = 128 if rows.shape[0] <= 512 else 256
    for begin in range(0, rows.shape[0], tile):
        end = min(begin + tile, rows.shape[0])
        target = out[begin:end, :end]
        torch.addmm(target, rows[begin:end], rows[:end].T, out=target)


def mirrored(lower: Tensor) -> Tensor:
    """The symmetric matrix with this lower half."""
    lower = torch.tril(lower)
    return lower + torch.tril(lower, -1).T


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums over consecutive segments of dimension 0; an empty one gives 0."""
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0, unsafe=True)


def offsets(lengths: Tensor) -> Tensor:
    """[N + 1] where each segment begins."""
    out = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=out[1:])
    return out
