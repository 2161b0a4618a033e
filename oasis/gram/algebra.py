"""Products with float32 sums, symmetric ones as lower halves, and sums over samples' segments."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = (torch.bfloat16, torch.float16)
MIXED = "cuda"  # the device whose products of half types are summed, and come out, in float32


def mixed(x: Tensor) -> bool:
    """Whether torch multiplies this half type into float32 as it is (CUDA, torch 2.8 and newer)."""
    if x.dtype not in LOW or x.device.type != MIXED or not hasattr(torch.ops.aten.mm, "dtype"):
        return False
    return x.dtype == torch.bfloat16 or not _float16_sums()


def _float16_sums() -> bool:
    """Whether the user lets float16 products be summed in float16: there is no float32 result."""
    return bool(getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False))


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type that products of this one are summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b with float32 sums (float64 for float64); halves are multiplied as they are if `mixed`."""
    if mixed(a):
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    work = sum_type(a.dtype)
    if out is None:  # autocast would halve a product that is returned, not one that is written
        out = a.new_empty((a.shape[0], b.shape[1]), dtype=work)
    return torch.mm(a.to(work), b.to(work), out=out)


def add_lower_products(out: Tensor, rows: Tensor) -> None:
    """out += rows rows^T, in tiles; the strict upper half of off-diagonal tiles is left alone."""
    # A narrow tile wastes less of its square on the upper half, but reads its operand more often.
    tile = 128 if rows.shape[0] <= 512 else 256
    for begin in range(0, rows.shape[0], tile):
        end = min(begin + tile, rows.shape[0])
        target = out[begin:end, :end]
        if rows.dtype == out.dtype:
            torch.addmm(target, rows[begin:end], rows[:end].T, out=target)
        else:  # torch 2.8 has no addmm of half types onto float32
            target += multiply(rows[begin:end], rows[:end].T)


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
