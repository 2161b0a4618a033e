"""Kernel 1 of head_gram: what happens to a block of logits between its two matrix products.

One program per token, two passes over its row of the block (the second hits the cache): the
largest off-label logit, then the sums and the entries E of the symmetric product. Entries leave as
float16 (see bench/NOTES-head-gram-gpu.md for the error), in one plane, or in two whose sum has
float32-like accuracy. Same mathematics as csrc/cpu/head.cpp (docs/method.md 1.1 and 1.2).

With a soft cap an entry is p f, f the chain factor, and the largest p need not have the largest
p f. So entries are taken relative to their own running maximum, the `ridge`; sums stay relative to
the `peak`. Without a soft cap the two are one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.softcap import log_chain, tanh


@triton.jit
def scaled_logit(row, bias, first, column, inside, scale, HAS_BIAS: tl.constexpr):
    z = tl.load(row + column, mask=inside, other=0.0)
    if HAS_BIAS:
        z += tl.load(bias + first + column, mask=inside, other=0.0)
    return z * scale


@triton.jit
def first_not_below(ordered, count, value):
    """Position of the first of `count` ascending numbers that is >= value."""
    low = tl.zeros((), tl.int64)
    high = low + count
    while low < high:
        middle = (low + high) // 2
        below = tl.load(ordered + middle) < value
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit
def growth(old, new):
    """new - old for a running maximum, 0 where it did not move (also from -inf to -inf)."""
    return tl.where(new == old, 0.0, new - old)


# `first` and `columns` are multiples of 16 but for the last block of an odd vocabulary: specialised
# on that, rows are read in whole vectors.
@triton.jit(do_not_specialize=["num_distinct"])
def epilogue_kernel(
    logits,  # [T, columns] float32, rows logits_stride apart
    logits_stride,
    entries,  # [planes, T rounded up, columns rounded up] float16, written
    plane_stride,
    entry_stride,
    bias,  # [V] float32
    labels,  # [T] int64
    distinct,  # [num_distinct] int64, ascending: the labels that occur
    gathers,  # [T, num_distinct] float32, written: logits before the cap; -inf at the own label
    label_logit,  # [T] float64, as are the next six
    peak,
    ridge,
    maximum,
    total,
    weighted,
    squares,
    factor,  # [T] float32, written: what earlier products of this row shrink by
    first,
    columns,
    num_distinct,
    scale,
    cap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    row = logits + t * logits_stride
    first = first.to(tl.int64)
    label = tl.load(labels + t) - first
    here = (label >= 0) & (label < columns)

    at_label = scaled_logit(row, bias, first, label, here, scale, HAS_BIAS)  # before the cap
    tl.store(label_logit + t, at_label.to(tl.float64), mask=here)

    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    highest_entry = highest
    highest_raw = highest
    for begin in range(0, columns, BLOCK):
        v = begin + tl.arange(0, BLOCK)
        counted = (v < columns) & (v != label)
        z = scaled_logit(row, bias, first, v, v < columns, scale, HAS_BIAS)
        if HAS_CAP:
            highest_raw = tl.maximum(highest_raw, tl.where(counted, z, float("-inf")))
            x = z / cap
            z = cap * tanh(x)
            entry = tl.where(counted, z + log_chain(x), float("-inf"))
            highest_entry = tl.maximum(highest_entry, entry)
        highest = tl.maximum(highest, tl.where(counted, z, float("-inf")))

    # The online-softmax merge: earlier results shrink by exp(old maximum - new maximum).
    old = tl.load(peak + t).to(tl.float32)
    new = tl.maximum(old, tl.max(highest, 0))
    grown = growth(old, new)
    shrink = tl.exp(-grown).to(tl.float64)
    old_total = tl.load(total + t)
    shift = tl.where(old_total > 0, grown.to(tl.float64) * old_total, 0.0)
    base = tl.where(new == float("-inf"), 0.0, new)
    if HAS_CAP:
        old_ridge = tl.load(ridge + t).to(tl.float32)
        new_ridge = tl.maximum(old_ridge, tl.max(highest_entry, 0))
        base_entry = tl.where(new_ridge == float("-inf"), 0.0, new_ridge)
        tl.store(ridge + t, new_ridge.to(tl.float64))
        raw = tl.maximum(tl.load(maximum + t), tl.max(highest_raw, 0).to(tl.float64))
        tl.store(maximum + t, raw)
        tl.store(factor + t, tl.exp(-growth(old_ridge, new_ridge)))
    else:
        tl.store(factor + t, tl.exp(-grown))

    sums = tl.zeros((BLOCK,), tl.float32)
    moments = tl.zeros((BLOCK,), tl.float32)
    energies = tl.zeros((BLOCK,), tl.float32)
    out = entries + t * entry_stride
    for begin in range(0, columns, BLOCK):
        v = begin + tl.arange(0, BLOCK)
        counted = (v < columns) & (v != label)
        z = scaled_logit(row, bias, first, v, v < columns, scale, HAS_BIAS)
        if HAS_CAP:
            x = z / cap
            z = cap * tanh(x)
        below = base - z
        e = tl.where(counted, tl.exp(-below), 0.0)
        sums += e
        moments += tl.where(e > 0, e * below, 0.0)  # a logit of -inf weighs nothing
        energies += e * e
        if HAS_CAP:
            e = tl.where(counted, tl.exp(z + log_chain(x) - base_entry), 0.0)
        # Columns beyond the block are written as zeros, so that the product needs no mask.
        coarse = e.to(tl.float16)
        tl.store(out + v, coarse)
        if PLANES == 2:
            tl.store(out + plane_stride + v, (e - coarse.to(tl.float32)).to(tl.float16))

    tl.store(peak + t, new.to(tl.float64))
    tl.store(total + t, old_total * shrink + tl.sum(sums, 0).to(tl.float64))
    carried = shrink * (tl.load(weighted + t) + shift)
    tl.store(weighted + t, carried + tl.sum(moments, 0).to(tl.float64))
    carried = shrink * shrink * tl.load(squares + t)
    tl.store(squares + t, carried + tl.sum(energies, 0).to(tl.float64))

    last = first_not_below(distinct, num_distinct, first + columns)
    for begin in range(first_not_below(distinct, num_distinct, first), last, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        wanted = k < last
        column = tl.load(distinct + k, mask=wanted, other=0) - first
        z = scaled_logit(row, bias, first, column, wanted, scale, HAS_BIAS)
        z = tl.where(column == label, float("-inf"), z)
        tl.store(gathers + t * num_distinct + k, z, mask=wanted)
