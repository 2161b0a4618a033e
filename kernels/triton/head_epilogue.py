"""Kernel 1 of head_gram: what happens to a block of logits between its two matrix products.

One program per token, two passes over its row of the block (the second hits the cache): the
largest off-label logit, then the sums and the entries E of the symmetric product. Entries leave as
float16 (see bench/NOTES-head-gram-gpu.md for the error), in one plane, or in two whose sum has
float32-like accuracy; or as float8 where that is asked for. Same mathematics as csrc/cpu/head.cpp
(docs/method.md 1.1 and 1.2).

With a soft cap an entry is p f, f the chain factor, and the largest p need not have the largest
p f. So entries are taken relative to their own running maximum, the `entry_peak`; sums stay
relative to the `peak`. Without a soft cap the two are one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.softcap import log_chain, tanh

# Rows of the state [STATE, T] float64 of the tokens, as `oasis.gram.backends.epilogue.FIELDS`.
PEAK = tl.constexpr(0)
ENTRY_PEAK = tl.constexpr(1)
MAXIMUM = tl.constexpr(2)
LABEL_LOGIT = tl.constexpr(3)
TOTAL = tl.constexpr(4)
WEIGHTED = tl.constexpr(5)
SQUARES = tl.constexpr(6)
STATE = 7


@triton.jit
def scaled_logit(row, bias, column, inside, scale, HAS_BIAS: tl.constexpr):
    z = tl.load(row + column, mask=inside, other=0.0)
    if HAS_BIAS:
        z += tl.load(bias + column, mask=inside, other=0.0)
    return z * scale


@triton.jit
def growth(old, new):
    """new - old for a running maximum, 0 where it did not move (also from -inf to -inf)."""
    return tl.where(new == old, 0.0, new - old)


@triton.jit
def finite(maximum):
    """A running maximum to subtract; 0 where nothing was seen yet."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def risen(state, first, highest):
    """(old, new) running maximum, kept in `state`; there is none before column 0."""
    old = tl.load(state, mask=first > 0, other=float("-inf")).to(tl.float32)
    new = tl.maximum(old, highest)
    tl.store(state, new.to(tl.float64))
    return old, new


@triton.jit
def maxima(
    row, bias, label, columns, scale, cap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit off the label: before the cap, after it, and with the chain factor."""
    raw = tl.full((BLOCK,), float("-inf"), tl.float32)
    highest = raw
    entry = raw
    for begin in range(0, columns, BLOCK):
        v = begin + tl.arange(0, BLOCK)
        counted = (v < columns) & (v != label)
        z = scaled_logit(row, bias, v, v < columns, scale, HAS_BIAS)
        if HAS_CAP:
            raw = tl.maximum(raw, tl.where(counted, z, float("-inf")))
            x = z / cap
            z = cap * tanh(x)
            entry = tl.maximum(entry, tl.where(counted, z + log_chain(x), float("-inf")))
        highest = tl.maximum(highest, tl.where(counted, z, float("-inf")))
    return tl.max(raw, 0), tl.max(highest, 0), tl.max(entry, 0)


@triton.jit
def taken_in(
    row, bias, label, state, factor, first, columns, tokens, scale, cap, HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes a block's maxima and its logit at the label into `state`, and writes `factor`.

    Returns the new peak, the new entry peak, by how much the peak grew, and the factor.
    """
    here = (label >= 0) & (label < columns)
    at_label = scaled_logit(row, bias, label, here, scale, HAS_BIAS).to(tl.float64)
    tl.store(state + LABEL_LOGIT * tokens, at_label, mask=here | (first == 0))
    raw, highest, entry = maxima(row, bias, label, columns, scale, cap, HAS_BIAS, HAS_CAP, BLOCK)
    old, peak = risen(state + PEAK * tokens, first, highest)
    old_entry_peak, entry_peak = old, peak
    if HAS_CAP:
        old_entry_peak, entry_peak = risen(state + ENTRY_PEAK * tokens, first, entry)
        risen(state + MAXIMUM * tokens, first, raw)
    shrink = tl.exp(-growth(old_entry_peak, entry_peak))
    tl.store(factor, shrink)
    return peak, entry_peak, growth(old, peak), shrink


@triton.jit
def exponentials(z, counted, base, base_entry, cap, HAS_CAP: tl.constexpr):
    """Of logits before the cap: e = exp(z - base), e (base - z), and E over its own base."""
    if HAS_CAP:
        x = z / cap
        z = cap * tanh(x)
    below = base - z
    e = tl.where(counted, tl.exp(-below), 0.0)
    moment = tl.where(e > 0, e * below, 0.0)  # a logit of -inf weighs nothing
    entry = e
    if HAS_CAP:
        entry = tl.where(counted, tl.exp(z + log_chain(x) - base_entry), 0.0)
    return e, moment, entry


@triton.jit
def entries_and_sums(
    row, bias, label, columns, base, base_entry, out, plane_stride, scale, cap,
    HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, PLANES: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes UNIT E, and returns the sums of e = exp(z - base), e (base - z) and e^2."""
    sums = tl.zeros((BLOCK,), tl.float32)
    moments = tl.zeros((BLOCK,), tl.float32)
    energies = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, columns, BLOCK):
        v = begin + tl.arange(0, BLOCK)
        counted = (v < columns) & (v != label)
        z = scaled_logit(row, bias, v, v < columns, scale, HAS_BIAS)
        e, moment, entry = exponentials(z, counted, base, base_entry, cap, HAS_CAP)
        sums += e
        moments += moment
        energies += e * e
        # Columns beyond the block are written as zeros, so that the product needs no mask.
        if UNIT != 1.0:
            entry *= UNIT
        coarse = entry.to(out.dtype.element_ty)
        tl.store(out + v, coarse)
        if PLANES == 2:
            tl.store(out + plane_stride + v, (entry - coarse.to(tl.float32)).to(coarse.dtype))
    return (
        tl.sum(sums, 0).to(tl.float64),
        tl.sum(moments, 0).to(tl.float64),
        tl.sum(energies, 0).to(tl.float64),
    )


@triton.jit
def merge_sums(state, stride, first, grown, sums, moments, energies):
    """The online-softmax merge: earlier results shrink by exp(old maximum - new maximum)."""
    seen = first > 0
    shrink = tl.exp(-grown).to(tl.float64)
    total = tl.load(state + TOTAL * stride, mask=seen, other=0.0)
    weighted = tl.load(state + WEIGHTED * stride, mask=seen, other=0.0)
    squares = tl.load(state + SQUARES * stride, mask=seen, other=0.0)
    shift = tl.where(total > 0, grown.to(tl.float64) * total, 0.0)
    tl.store(state + TOTAL * stride, total * shrink + sums)
    tl.store(state + WEIGHTED * stride, shrink * (weighted + shift) + moments)
    tl.store(state + SQUARES * stride, shrink * shrink * squares + energies)


@triton.jit
def gather_labels(
    row, bias, label, ordered, begin, end, first, gathers, scale, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the logits at the labels of all tokens that lie in this block; -inf at the own."""
    for start in range(begin, end, BLOCK):
        k = start + tl.arange(0, BLOCK)
        wanted = k < end
        column = tl.load(ordered + k, mask=wanted, other=0) - first
        z = scaled_logit(row, bias, column, wanted, scale, HAS_BIAS)
        tl.store(gathers + k, tl.where(column == label, float("-inf"), z), mask=wanted)


# `first` and `columns` are multiples of 16 but for the last block of an odd vocabulary: specialised
# on that, rows are read in whole vectors.
@triton.jit(do_not_specialize=["tokens"])
def epilogue_kernel(
    logits,  # [T, columns] float32, rows logits_stride apart
    logits_stride,
    entries,  # [planes, T rounded up, columns rounded up] float16 or float8, written
    plane_stride,
    entry_stride,
    bias,  # [V] float32
    labels,  # [T] int32
    ordered,  # [T] int32, the labels of all tokens, ascending
    bounds,  # int32, where those of this block begin, and those of the next
    gathers,  # [T, T] float32, written: logits before the cap at the ordered labels
    state,  # [STATE, T] float64, written anew by the block of column 0
    factor,  # [T] float32, written: what earlier products of this row shrink by
    first,
    columns,
    tokens,
    scale,
    cap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PLANES: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    row, out, state = logits + t * logits_stride, entries + t * entry_stride, state + t
    bias += first
    label = tl.load(labels + t) - first
    peak, entry_peak, grown, _ = taken_in(
        row, bias, label, state, factor + t, first, columns, tokens, scale, cap, HAS_BIAS, HAS_CAP,
        BLOCK,
    )  # fmt: skip
    sums, moments, energies = entries_and_sums(
        row, bias, label, columns, finite(peak), finite(entry_peak), out, plane_stride, scale, cap,
        HAS_BIAS, HAS_CAP, PLANES, UNIT, BLOCK,
    )  # fmt: skip
    merge_sums(state, tokens, first, grown, sums, moments, energies)
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    gather_labels(
        row, bias, label, ordered, begin, end, first, gathers + t * tokens, scale, HAS_BIAS, BLOCK
    )
