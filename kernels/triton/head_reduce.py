"""Kernels 4 and 5 of head_gram: token products times h h^T, summed by sample (docs/method.md 1.1).

A program owns up to ROWS tokens of one sample i and all tokens of one sample j <= i, so a ragged
segment never shares a program with another one and each number of the result is written once.
Differences are taken in float64: what is left of a confident token is far below float32's range.

Sample i has the tiles from offsets[i] // ROWS + i on, enough for any length: which tile is whose
follows from `offsets` alone, on the device.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.head_epilogue import ENTRY_PEAK, PEAK
from oasis.kernels.triton.softcap import log_chain, tanh


@triton.jit
def entry(logit, peak, cap, HAS_CAP: tl.constexpr):
    """exp(z - peak) f of a gathered logit; -inf gives 0."""
    z = logit
    if HAS_CAP:
        z = cap * tanh(logit / cap) + log_chain(logit / cap)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return tl.exp(z - base).to(tl.float64)


@triton.jit
def first_tile(offsets, i, ROWS: tl.constexpr):
    return tl.load(offsets + i).to(tl.int64) // ROWS + i


@triton.jit
def owner_of(offsets, samples, tile, ROWS: tl.constexpr):
    """The sample whose tiles `tile` lies among: the last that begins at or before it."""
    low = tl.zeros((), tl.int64)
    high = low + samples
    while low < high:
        middle = (low + high) // 2
        begun = first_tile(offsets, middle, ROWS) <= tile
        low = tl.where(begun, middle + 1, low)
        high = tl.where(begun, high, middle)
    return low - 1


@triton.jit(do_not_specialize=["tokens", "samples", "first_sample"])
def reduce_kernel(
    products,  # [side, side] float32, lower half; the first `tokens` rows and columns count
    inner,  # [tokens, tokens] float32, lower half of h h^T
    gathers,  # [tokens, tokens] float32 logits before the cap
    label_index,  # [tokens] int32, column of a token's label in gathers
    state,  # [STATE, tokens] float64
    results,  # [RESULTS, tokens] float64: factor of a token's entries; of its label column
    offsets,  # [samples + 1] int32
    partial,  # [tiles, samples] float64, written for j <= i
    side,
    tokens,
    samples,
    first_sample,  # of the launch: j counts from it
    cap,
    HAS_CAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    j = first_sample + tl.program_id(1).to(tl.int64)
    i = owner_of(offsets, samples, tile, ROWS)
    begin = tl.load(offsets + i) + (tile - first_tile(offsets, i, ROWS)) * ROWS
    stop = tl.load(offsets + i + 1)
    coefficient, label, entry_peak = results, results + tokens, state + PEAK * tokens
    if HAS_CAP:
        entry_peak = state + ENTRY_PEAK * tokens
    if (begin < stop) & (j <= i):
        t = (begin + tl.arange(0, ROWS))[:, None]
        mine = t < stop
        coefficient_t = tl.load(coefficient + t, mask=mine, other=0.0)
        label_t = tl.load(label + t, mask=mine, other=0.0)
        entry_peak_t = tl.load(entry_peak + t, mask=mine, other=0.0).to(tl.float32)
        index_t = tl.load(label_index + t, mask=mine, other=0)
        sums = tl.zeros((ROWS, COLUMNS), tl.float64)
        # Of a sample's products with itself the lower half is there.
        end = tl.minimum(tl.load(offsets + j + 1), begin + ROWS)
        for start in range(tl.load(offsets + j).to(tl.int64), end, COLUMNS):
            s = (start + tl.arange(0, COLUMNS).to(tl.int64))[None, :]
            theirs = s < end
            coefficient_s = tl.load(coefficient + s, mask=theirs, other=0.0)
            label_s = tl.load(label + s, mask=theirs, other=0.0)
            entry_peak_s = tl.load(entry_peak + s, mask=theirs, other=0.0).to(tl.float32)
            index_s = tl.load(label_index + s, mask=theirs, other=0)
            pair = mine & theirs & (s <= t)
            at_s = tl.load(gathers + t * tokens + index_s, mask=pair, other=float("-inf"))
            at_t = tl.load(gathers + s * tokens + index_t, mask=pair, other=float("-inf"))
            d = tl.load(products + t * side + s, mask=pair, other=0.0).to(tl.float64)
            d *= coefficient_t * coefficient_s
            d -= entry(at_s, entry_peak_t, cap, HAS_CAP) * coefficient_t * label_s
            d -= entry(at_t, entry_peak_s, cap, HAS_CAP) * coefficient_s * label_t
            d += tl.where(index_t == index_s, label_t * label_s, 0.0)
            d *= tl.load(inner + t * tokens + s, mask=pair, other=0.0).to(tl.float64)
            d = tl.where((i == j) & (s < t), 2.0 * d, d)
            sums += tl.where(pair, d, 0.0)
        tl.store(partial + tile * samples + j, tl.sum(tl.sum(sums, 1), 0))


@triton.jit
def segment_sum(values, begin, end, BLOCK: tl.constexpr):
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        sums += tl.load(values + t, mask=t < end, other=0.0)
    return tl.sum(sums, 0)


@triton.jit(do_not_specialize=["tokens", "samples"])
def samples_kernel(
    partial,  # [tiles, samples] float64 of `reduce_kernel`
    results,  # [RESULTS, tokens] float64: behind those two, the metrics
    offsets,  # [samples + 1] int32
    poison,  # [1] float64, added to every score
    gram,  # [samples, samples] float64, written, as are the next five
    loss,
    entropy,
    el2n,
    correct,  # int64
    count,  # int64
    tokens,
    samples,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + i), tl.load(offsets + i + 1)
    spoilt = tl.load(poison)
    tl.store(loss + i, spoilt + segment_sum(results + 2 * tokens, begin, end, BLOCK))
    tl.store(entropy + i, spoilt + segment_sum(results + 3 * tokens, begin, end, BLOCK))
    tl.store(el2n + i, spoilt + segment_sum(results + 4 * tokens, begin, end, BLOCK))
    hits = segment_sum(results + 5 * tokens, begin, end, BLOCK)
    tl.store(correct + i, hits.to(tl.int64))
    tl.store(count + i, (end - begin).to(tl.int64))
    tile = first_tile(offsets, i, ROWS)
    tiles = (end - begin + ROWS - 1) // ROWS
    for start in range(0, i + 1, BLOCK):
        j = start + tl.arange(0, BLOCK)
        wanted = j <= i
        sums = tl.zeros((BLOCK,), tl.float64) + spoilt
        for p in range(0, tiles):
            sums += tl.load(partial + (tile + p) * samples + j, mask=wanted, other=0.0)
        tl.store(gram + i * samples + j, sums, mask=wanted)
        tl.store(gram + j * samples + i, sums, mask=wanted)
