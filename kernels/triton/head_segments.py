"""Before the products of head_gram: whose token is whose, without a value that the host must read.

Tokens are ordered by sample, ignored ones behind all samples; a sample is then a segment of them.
What would be an error on the host has no one to tell here: a label outside the vocabulary makes its
sample's numbers NaN, a sample that does not exist those of all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from oasis import names

IGNORED = tl.constexpr(names.IGNORED)


@triton.jit(do_not_specialize=["tokens", "samples", "vocabulary"])
def keys_kernel(
    labels,  # [T] int64
    sample,  # [T] int64
    keys,  # [2, T] int32, written: the sample (N where ignored); the label (-1 where none)
    poison,  # [1] float64, written: NaN where a sample lies outside of 0 .. N - 1, else 0
    tokens,
    samples,
    vocabulary,
    BLOCK: tl.constexpr,
):
    lost = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, tokens, BLOCK):
        t = begin + tl.arange(0, BLOCK)
        there = t < tokens
        label = tl.load(labels + t, mask=there, other=IGNORED)
        owner = tl.load(sample + t, mask=there, other=0)
        nobody = (owner < 0) | (owner >= samples)
        lost |= nobody.to(tl.int32)
        counted = (label != IGNORED) & (nobody == 0)
        known = (label >= 0) & (label < vocabulary)
        tl.store(keys + t, tl.where(counted, owner, samples).to(tl.int32), mask=there)
        tl.store(keys + tokens + t, tl.where(known, label, -1).to(tl.int32), mask=there)
    tl.store(poison, tl.where(tl.max(lost, 0) > 0, float("nan"), 0.0).to(tl.float64))


@triton.jit
def first_not_below(ordered, count, value, steps):
    """Position of the first of `count` ascending numbers that is >= value, for every value."""
    low = tl.zeros_like(value)
    high = low + count
    for _ in range(0, steps):  # of a bisection
        middle = (low + high) // 2
        below = (low < high) & (tl.load(ordered + middle, mask=low < high, other=0) < value)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit(do_not_specialize=["tokens", "samples", "parts", "size", "steps"])
def segments_kernel(
    keys,  # [2, T] int32 of `keys_kernel`
    ordered,  # [2, T] int32, its rows sorted
    order,  # [T] int64, where each token of the first row was
    labels,  # [T] int32, written, as are the next three: by sample
    label_index,  # [T] int32, the first place of a token's label among the ordered labels
    offsets,  # [N + 1] int32, where each sample begins
    bounds,  # [parts + 1] int32, where the labels of each block of `size` columns begin
    tokens,
    samples,
    parts,
    size,
    steps,
    BLOCK: tl.constexpr,
):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = k < tokens
    label = tl.load(keys + tokens + tl.load(order + k, mask=there, other=0), mask=there, other=0)
    tl.store(labels + k, label, mask=there)
    place = first_not_below(ordered + tokens, tokens, label, steps)
    tl.store(label_index + k, place, mask=there)
    tl.store(offsets + k, first_not_below(ordered, tokens, k, steps), mask=k <= samples)
    column = k * size
    place = first_not_below(ordered + tokens, tokens, column, steps)
    tl.store(bounds + k, place, mask=k <= parts)
