"""Kernel 3 of head_gram: what a token contributes, from its final state (docs/method.md 1.1).

delta_t = coefficient_t E_t - label_t e_{y_t}, and the shares of the sample's metrics. As
`oasis.gram.problem.Problem.results`, in float64, in one launch instead of some forty.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.head_epilogue import (
    ENTRY_PEAK,
    LABEL_LOGIT,
    MAXIMUM,
    PEAK,
    SQUARES,
    TOTAL,
    WEIGHTED,
)

# The last rows of the results [RESULTS, T], which the sketches read.
COEFFICIENT = tl.constexpr(6)
ENTRY_SHARE = tl.constexpr(7)
LABEL_SHARE = tl.constexpr(8)
RESULTS = 9


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0, to the last digits where x is small (Kahan)."""
    w = 1.0 + x
    return tl.where(w == 1.0, x, tl.log(w) * (x / tl.where(w == 1.0, 1.0, w - 1.0)))


@triton.jit
def expm1(x):
    """exp(x) - 1 for x <= 0, likewise."""
    w = tl.exp(x)
    inner = (w != 1.0) & (w > 0.0)
    safe = tl.where(inner, w, 0.5)
    return tl.where(inner, (w - 1.0) * (x / tl.log(safe)), tl.where(w == 1.0, x, -1.0))


@triton.jit
def capped(logit, cap, HAS_CAP: tl.constexpr):
    """The logit after the soft cap, and the log of the cap's chain factor there."""
    if HAS_CAP:
        x = tl.abs(logit / cap)
        u = expm1(-2.0 * x)
        log_slope = 2.0 * (0.6931471805599453 - x - log1p(1.0 + u))
        bent = cap * (-u / (2.0 + u))
        return tl.where(logit < 0.0, -bent, bent), log_slope
    return logit, tl.zeros_like(logit)


@triton.jit
def share_of(labels, owner, offsets, t, there, samples, MEAN: tl.constexpr):
    """A token's part of its sample's sum or mean; NaN of a label outside the vocabulary."""
    known = tl.load(labels + t, mask=there, other=0) >= 0
    share = tl.where(known, 1.0, float("nan")).to(tl.float64)
    if MEAN:
        i = tl.load(owner + t, mask=there, other=0)
        mine = there & (i < samples)
        begin = tl.load(offsets + i, mask=mine, other=0)
        end = tl.load(offsets + i + 1, mask=mine, other=1)
        share /= tl.maximum(end - begin, 1).to(tl.float64)
    return share


@triton.jit(do_not_specialize=["tokens", "samples"])
def results_kernel(
    state,  # [STATE, T] float64
    labels,  # [T] int32, -1 where it lies outside the vocabulary
    owner,  # [T] int32, N of an ignored token
    offsets,  # [N + 1] int32
    results,  # [RESULTS, T] float64, written: coefficient x entry_share, coefficient x label_share;
    # loss, entropy, el2n, correct; and of the sketches coefficient (0 where ignored), entry_share,
    # label_share
    tokens,
    samples,
    scale,
    cap,
    MEAN: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = t < tokens
    raw = tl.load(state + LABEL_LOGIT * tokens + t, mask=there, other=0.0)
    peak = tl.load(state + PEAK * tokens + t, mask=there, other=0.0)
    total = tl.load(state + TOTAL * tokens + t, mask=there, other=1.0)
    weighted = tl.load(state + WEIGHTED * tokens + t, mask=there, other=0.0)
    squares = tl.load(state + SQUARES * tokens + t, mask=there, other=0.0)
    entry_peak = peak
    maximum = peak
    if HAS_CAP:
        entry_peak = tl.load(state + ENTRY_PEAK * tokens + t, mask=there, other=0.0)
        maximum = tl.load(state + MAXIMUM * tokens + t, mask=there, other=0.0)
    share = share_of(labels, owner, offsets, t, there, samples, MEAN)
    logit, log_slope = capped(raw, cap, HAS_CAP)
    # Everything relative to the label's logit: a confident token keeps its small numbers.
    lead, empty = peak - logit, total == 0
    log_total = tl.log(tl.where(empty, 1.0, total))
    off_label = tl.where(empty, float("-inf"), log_total + lead)
    loss = tl.where(off_label > 0, off_label, 0.0) + log1p(tl.exp(-tl.abs(off_label)))
    ratio = tl.where(empty, 0.0, tl.exp(lead - loss))  # exp(peak - log-sum-exp)
    above = tl.where(empty, 0.0, loss - lead)  # log-sum-exp - peak
    q = total * ratio
    entropy = tl.exp(-loss) * loss + ratio * (above * total + weighted)
    tl.store(results + 2 * tokens + t, share * loss, mask=there)
    tl.store(results + 3 * tokens + t, share * entropy, mask=there)
    tl.store(results + 4 * tokens + t, share * tl.sqrt(ratio * ratio * squares + q * q), mask=there)
    # Both before the cap, where no two logits run into one.
    tl.store(results + 5 * tokens + t, (raw > maximum).to(tl.float64), mask=there)

    # The larger of the label column and E is the unit, so that neither leaves float32.
    log_label = peak + log_total + log_slope
    base = tl.where(log_label > entry_peak, log_label, entry_peak)
    coefficient = tl.where(empty, 0.0, share * scale * tl.exp(base - logit - loss))
    entry_share = tl.where(empty, 0.0, tl.exp(entry_peak - base))
    label_share = tl.where(empty, 0.0, tl.exp(log_label - base))
    tl.store(results + t, coefficient * entry_share, mask=there)
    tl.store(results + tokens + t, coefficient * label_share, mask=there)
    counted = tl.load(owner + t, mask=there, other=0) < samples
    tl.store(results + COEFFICIENT * tokens + t, tl.where(counted, coefficient, 0.0), mask=there)
    tl.store(results + ENTRY_SHARE * tokens + t, tl.where(counted, entry_share, 0.0), mask=there)
    tl.store(results + LABEL_SHARE * tokens + t, tl.where(counted, label_share, 0.0), mask=there)
