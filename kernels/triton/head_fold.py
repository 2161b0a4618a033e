"""Kernels 1f and 2f of head_gram: E folded where it is made, and what tokens are multiplied by.

The epilogue of `head_epilogue`, but for its second pass: that goes through the buckets of a sketch,
the columns of each together (`head_sketch`), so that a bucket's sum stays in a register and E is
never written. Then a token is its folds and, apart, E at everybody's label.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.head_epilogue import (
    ENTRY_PEAK,
    PEAK,
    exponentials,
    finite,
    gather_labels,
    merge_sums,
    scaled_logit,
    taken_in,
)
from oasis.kernels.triton.head_reduce import entry


@triton.jit
def folds_and_sums(
    row, bias, label, first, columns, base, base_entry, shrink, folds, buckets, signs, m, scale,
    cap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds E to `folds` [m], and returns the sums of e = exp(z - base), e (base - z) and e^2."""
    sums = tl.zeros((BLOCK,), tl.float32)
    moments = tl.zeros((BLOCK,), tl.float32)
    energies = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, m, BLOCK):
        bucket = begin + tl.arange(0, BLOCK)
        kept = bucket < m
        total = tl.load(folds + bucket, mask=kept & (first > 0), other=0.0) * shrink
        for run in range(first // m, (first + columns + m - 1) // m):
            inside = bucket - tl.load(buckets + run * m)
            v = run * m - first + tl.where(inside < 0, inside + m, inside)
            there = kept & (v >= 0) & (v < columns)
            counted = there & (v != label)
            z = scaled_logit(row, bias, v, there, scale, HAS_BIAS)
            e, moment, part = exponentials(z, counted, base, base_entry, cap, HAS_CAP)
            sums += e
            moments += moment
            energies += e * e
            total += part * tl.load(signs + first + v, mask=there, other=0.0)
        tl.store(folds + bucket, total, mask=kept)
    return (
        tl.sum(sums, 0).to(tl.float64),
        tl.sum(moments, 0).to(tl.float64),
        tl.sum(energies, 0).to(tl.float64),
    )


@triton.jit(do_not_specialize=["tokens", "m"])
def fold_kernel(
    logits,  # [T, columns] float32, rows logits_stride apart
    logits_stride,
    bias,  # [V] float32
    labels,  # [T] int32
    ordered,  # [T] int32, the labels of all tokens, ascending
    bounds,  # int32, where those of this block begin, and those of the next
    gathers,  # [T, T] float32, written: logits before the cap at the ordered labels
    state,  # [STATE, T] float64, written anew by the block of column 0
    factor,  # [T] float32, written: what earlier folds of this row shrink by
    folds,  # [T, m] float32, written anew by the block of column 0
    buckets,  # [V] int32
    signs,  # [V] float32
    first,
    columns,
    tokens,
    m,
    scale,
    cap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    AGAIN: tl.constexpr,  # by other tables, after this block's first launch: folds alone
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    row, state, folds = logits + t * logits_stride, state + t, folds + t * m
    bias += first
    label = tl.load(labels + t) - first
    if AGAIN:
        peak = tl.load(state + PEAK * tokens).to(tl.float32)
        entry_peak = peak
        if HAS_CAP:
            entry_peak = tl.load(state + ENTRY_PEAK * tokens).to(tl.float32)
        folds_and_sums(
            row, bias, label, first, columns, finite(peak), finite(entry_peak), tl.load(factor + t),
            folds, buckets, signs, m, scale, cap, HAS_BIAS, HAS_CAP, BLOCK,
        )  # fmt: skip
    else:
        peak, entry_peak, grown, shrink = taken_in(
            row, bias, label, state, factor + t, first, columns, tokens, scale, cap, HAS_BIAS,
            HAS_CAP, BLOCK,
        )  # fmt: skip
        sums, moments, energies = folds_and_sums(
            row, bias, label, first, columns, finite(peak), finite(entry_peak), shrink, folds,
            buckets, signs, m, scale, cap, HAS_BIAS, HAS_CAP, BLOCK,
        )  # fmt: skip
        merge_sums(state, tokens, first, grown, sums, moments, energies)
        gather_labels(
            row, bias, label, ordered, tl.load(bounds), tl.load(bounds + 1), first,
            gathers + t * tokens, scale, HAS_BIAS, BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "m"])
def features_kernel(
    folds,  # [T, m] float32
    gathers,  # [T, T] float32 logits before the cap
    ordered,  # [T] int32, the labels of all tokens, ascending
    state,  # [STATE, T] float64
    features,  # [T, m + T], written
    tokens,
    m,
    cap,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    entry_peak = tl.load(state + PEAK * tokens + t).to(tl.float32)
    if HAS_CAP:
        entry_peak = tl.load(state + ENTRY_PEAK * tokens + t).to(tl.float32)
    fold = tl.load(folds + t * m + at, mask=at < m, other=0.0)
    k = at - m
    there = (k >= 0) & (k < tokens)
    label = tl.load(ordered + k, mask=there, other=-1)
    before = tl.load(ordered + k - 1, mask=there & (k > 0), other=-1)
    # A label that several tokens have counts once, and one outside the vocabulary never.
    first_of_its_kind = there & (label >= 0) & (label != before)
    logit = tl.load(gathers + t * tokens + k, mask=first_of_its_kind, other=float("-inf"))
    value = tl.where(at < m, fold, entry(logit, entry_peak, cap, HAS_CAP).to(tl.float32))
    value = tl.where(first_of_its_kind | (at < m), value, 0.0)
    out = features + t * (m + tokens) + at
    tl.store(out, value.to(features.dtype.element_ty), mask=at < m + tokens)
