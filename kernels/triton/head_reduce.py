"""Kernel 3 of head_gram: token products times h h^T, summed by sample (docs/method.md 1.1).

A program owns up to ROWS tokens of one sample i and all tokens of one sample j <= i, so a ragged
segment never shares a program with another one and each number of the result is written once.
Differences are taken in float64: what is left of a confident token is far below float32's range.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.softcap import log_chain, tanh


@triton.jit
def entry(logit, peak, cap, HAS_CAP: tl.constexpr):
    """exp(z - peak) f of a gathered logit; -inf gives 0."""
    z = logit
    if HAS_CAP:
        z = cap * tanh(logit / cap) + log_chain(logit / cap)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return tl.exp(z - base).to(tl.float64)


@triton.jit(do_not_specialize=["tokens", "num_distinct", "samples"])
def reduce_kernel(
    products,  # [side, side] float32, lower half; the first `tokens` rows and columns count
    inner,  # [tokens, tokens] float32, lower half of h h^T
    gathers,  # [tokens, num_distinct] float32 logits before the cap
    label_index,  # [tokens] int64, column of a token's label in gathers
    ridge,  # [tokens] float64, as are the next two
    tilt,  # factor of a token's entries
    label,  # its label column, with the chain factor
    offsets,  # [samples + 1] int64
    tile_sample,  # [tiles] int64, `samples` where there is no such tile
    tile_first,  # [tiles] int64, first token
    partial,  # [tiles, samples] float64, written for j <= i
    side,
    tokens,
    num_distinct,
    samples,
    cap,
    HAS_CAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1).to(tl.int64)
    i = tl.load(tile_sample + tile)
    if (i < samples) & (j <= i):
        begin = tl.load(tile_first + tile)
        t = (begin + tl.arange(0, ROWS))[:, None]
        mine = t < tl.load(offsets + i + 1)
        tilt_t = tl.load(tilt + t, mask=mine, other=0.0)
        label_t = tl.load(label + t, mask=mine, other=0.0)
        ridge_t = tl.load(ridge + t, mask=mine, other=0.0).to(tl.float32)
        index_t = tl.load(label_index + t, mask=mine, other=0)
        sums = tl.zeros((ROWS, COLUMNS), tl.float64)
        # Of a sample's products with itself the lower half is there.
        end = tl.minimum(tl.load(offsets + j + 1), begin + ROWS)
        for start in range(tl.load(offsets + j), end, COLUMNS):
            s = (start + tl.arange(0, COLUMNS))[None, :]
            theirs = s < end
            tilt_s = tl.load(tilt + s, mask=theirs, other=0.0)
            label_s = tl.load(label + s, mask=theirs, other=0.0)
            ridge_s = tl.load(ridge + s, mask=theirs, other=0.0).to(tl.float32)
            index_s = tl.load(label_index + s, mask=theirs, other=0)
            pair = mine & theirs & (s <= t)
            at_s = tl.load(gathers + t * num_distinct + index_s, mask=pair, other=float("-inf"))
            at_t = tl.load(gathers + s * num_distinct + index_t, mask=pair, other=float("-inf"))
            d = tl.load(products + t * side + s, mask=pair, other=0.0).to(tl.float64)
            d *= tilt_t * tilt_s
            d -= entry(at_s, ridge_t, cap, HAS_CAP) * tilt_t * label_s
            d -= entry(at_t, ridge_s, cap, HAS_CAP) * tilt_s * label_t
            d += tl.where(index_t == index_s, label_t * label_s, 0.0)
            d *= tl.load(inner + t * tokens + s, mask=pair, other=0.0).to(tl.float64)
            d = tl.where((i == j) & (s < t), 2.0 * d, d)
            sums += tl.where(pair, d, 0.0)
        tl.store(partial + tile * samples + j, tl.sum(tl.sum(sums, 1), 0))
