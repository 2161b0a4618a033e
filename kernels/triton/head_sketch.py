"""Kernel 2b of head_gram: a block's entries E added to the sketch of every token.

One program per token and BUCKETS buckets. The vocabulary lies in runs of m positions, each rotated
by a shift of its own (`oasis.gram.tensor_sketch`): of every run one position falls into a bucket.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["columns"])
def sketch_kernel(
    entries,  # [planes, T rounded up, columns rounded up], UNIT E
    plane_stride,
    entry_stride,
    factor,  # [T] float32: what earlier sums of this token shrink by
    buckets,  # [V] int32, ascending within a run but for its rotation
    signs,  # [V] float32
    sums,  # [T, m] float32, written anew by the block of column 0
    first,
    columns,
    m,
    PLANES: tl.constexpr,
    UNIT: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    bucket = tl.program_id(1) * BUCKETS + tl.arange(0, BUCKETS)
    kept = bucket < m
    row = entries + t * entry_stride
    at = sums + t * m + bucket
    total = tl.load(at, mask=kept & (first > 0), other=0.0) * tl.load(factor + t)
    for run in range(first // m, (first + columns + m - 1) // m):
        shift = tl.load(buckets + run * m)
        inside = bucket - shift
        v = run * m + tl.where(inside < 0, inside + m, inside)
        there = kept & (v >= first) & (v < first + columns)
        e = tl.load(row + (v - first), mask=there, other=0.0).to(tl.float32)
        if PLANES == 2:
            e += tl.load(row + plane_stride + (v - first), mask=there, other=0.0).to(tl.float32)
        if UNIT != 1.0:
            e *= 1.0 / UNIT
        total += e * tl.load(signs + v, mask=there, other=0.0)
    tl.store(at, total, mask=kept)
