"""Kernel 2 of head_gram: products <- factor products factor^T + E E^T, lower tiles alone.

One program per tile of the lower triangle, on tensor cores with float32 accumulation; earlier
products shrink on both sides as the running maxima grow (docs/method.md 1.2), in the same pass.
Two planes of E cost three products: high high + high low + low high.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lower_tile(p):
    """Row and column of the p-th tile of the lower triangle, counted row by row."""
    i = ((tl.sqrt(8.0 * p.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int64)
    # float32 may be off by one either way
    i = tl.where(i * (i + 1) // 2 > p, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= p, i + 1, i)
    return i, p - i * (i + 1) // 2


@triton.jit(do_not_specialize=["columns"])
def products_kernel(
    entries,  # [PLANES, side, columns rounded up to DEPTH] float16
    plane_stride,
    entry_stride,
    products,  # [side, side] float32, updated
    factor,  # [side] float32
    side,  # tokens rounded up to TILE: no masks, whole vectors
    columns,
    PLANES: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    i, j = lower_tile(tl.program_id(0).to(tl.int64))
    # Scalar 64-bit bases; offsets within a tile fit 32 bits and save half the address registers.
    row, other = i * TILE, j * TILE
    tile = tl.arange(0, TILE)
    step = tl.arange(0, DEPTH)
    a = entries + row * entry_stride + (tile[:, None] * entry_stride + step[None, :])
    b = entries + other * entry_stride + (tile[None, :] * entry_stride + step[:, None])
    sums = tl.zeros((TILE, TILE), tl.float32)
    for _ in range(0, columns, DEPTH):
        high_a, high_b = tl.load(a), tl.load(b)
        if PLANES == 2:
            low_a, low_b = tl.load(a + plane_stride), tl.load(b + plane_stride)
            sums = tl.dot(high_a, low_b, sums)
            sums = tl.dot(low_a, high_b, sums)
        sums = tl.dot(high_a, high_b, sums)
        a += DEPTH
        b += DEPTH

    at = products + (row * side + other) + (tile[:, None] * side + tile[None, :])
    shrink_row, shrink_other = tl.load(factor + row + tile), tl.load(factor + other + tile)
    sums += tl.load(at) * (shrink_row[:, None] * shrink_other[None, :])
    tl.store(at, sums)
