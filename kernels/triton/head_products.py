"""Kernel 2 of head_gram: products <- factor products factor^T + E E^T, lower tiles alone.

One program per tile of the lower triangle and part of the block's columns, on tensor cores with
float32 accumulation; earlier products shrink on both sides as the running maxima grow
(docs/method.md 1.2), in the same pass. Two planes of E cost three products: high high + high low +
low high. Which tile, and how many parts: `oasis.gram.tiles`.
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


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of [ROWS, COLUMNS]."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def add_to(at, sums, factor_row, factor_other):
    """Earlier sums shrink on both sides as these are added."""
    sums += tl.load(at) * (factor_row[:, None] * tl.load(factor_other)[None, :])
    tl.store(at, sums)


@triton.jit(do_not_specialize=["tokens", "columns"])
def products_kernel(
    entries,  # [PLANES, side, columns rounded up to DEPTH], UNIT E
    plane_stride,
    entry_stride,
    products,  # [parts, side, side] float32, updated
    factor,  # [side] float32
    tokens,
    side,  # tokens rounded up to COLUMNS: no masks, whole vectors
    columns,
    part,  # columns of a program in the launch's second dimension
    PLANES: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # ROWS, or twice as many
    DEPTH: tl.constexpr,
):
    p = tl.program_id(0).to(tl.int64)
    WIDE: tl.constexpr = COLUMNS // ROWS
    i, j = lower_tile(p // WIDE)
    # Scalar 64-bit bases; offsets within a tile fit 32 bits and save half the address registers.
    row, other = (i * WIDE + p % WIDE) * ROWS, j * COLUMNS
    if row >= tokens:  # padding alone
        return
    begin = tl.program_id(1) * part
    end = tl.minimum(columns, begin + part)
    tile, across, step = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    a = entries + (row * entry_stride + begin) + (tile[:, None] * entry_stride + step[None, :])
    b = entries + (other * entry_stride + begin) + (across[None, :] * entry_stride + step[:, None])
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(begin, end, DEPTH):
        high_a, high_b = tl.load(a), tl.load(b)
        if PLANES == 2:
            low_a, low_b = tl.load(a + plane_stride), tl.load(b + plane_stride)
            sums = tl.dot(high_a, low_b, sums)
            sums = tl.dot(low_a, high_b, sums)
        if UNIT == 1.0:
            sums = tl.dot(high_a, high_b, sums)
        else:
            # Tensor cores before Blackwell keep some 14 bits of a sum of float8 products: it is
            # added to one of float32 at every step.
            sums += tl.dot(high_a, high_b, max_num_imprecise_acc=DEPTH)
        a += DEPTH
        b += DEPTH
    if UNIT != 1.0:
        sums *= 1.0 / (UNIT * UNIT)

    # By quarters: the earlier sums of a whole tile would double the registers.
    QUARTER: tl.constexpr = COLUMNS // 4
    quarter = tl.arange(0, QUARTER)
    at = products + tl.program_id(1).to(tl.int64) * side * side + (row * side + other)
    at += tile[:, None] * side + quarter[None, :]
    factor_row, factor_other = tl.load(factor + row + tile), factor + other + quarter
    left, right = halves(sums, ROWS, COLUMNS)
    first, second = halves(left, ROWS, COLUMNS // 2)
    add_to(at, first, factor_row, factor_other)
    add_to(at + QUARTER, second, factor_row, factor_other + QUARTER)
    third, fourth = halves(right, ROWS, COLUMNS // 2)
    add_to(at + 2 * QUARTER, third, factor_row, factor_other + 2 * QUARTER)
    add_to(at + 3 * QUARTER, fourth, factor_row, factor_other + 3 * QUARTER)
