"""Kernel 6 of head_gram: the sketches of the samples' gradients, before and after the transforms.

As `oasis.gram.tensor_sketch.sample_sketches`, but for the convolutions, in two launches instead of
some thirty. Coefficients are taken over the largest of their sample: their squares may underflow
float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from oasis.kernels.triton.head_results import COEFFICIENT, ENTRY_SHARE, LABEL_SHARE


@triton.jit
def unit_of(results, offsets, sample, tokens, counted, BLOCK: tl.constexpr):
    """The largest coefficient of a sample's tokens; 1 where there is none, or if not `counted`."""
    begin = tl.load(offsets + sample, mask=counted, other=0)
    end = tl.load(offsets + sample + 1, mask=counted, other=0)
    largest = tl.zeros((BLOCK,), tl.float64)
    for first in range(begin, end, BLOCK):
        t = first + tl.arange(0, BLOCK)
        coefficient = tl.load(results + COEFFICIENT * tokens + t, mask=t < end, other=0.0)
        largest = tl.maximum(largest, tl.abs(coefficient))
    top = tl.max(largest, 0)
    return tl.where(top > 0.0, top, 1.0)


@triton.jit(do_not_specialize=["tokens", "samples"])
def sketch_tokens_kernel(
    deltas,  # [T, m] float32, sketches of E; changed to those of delta_t / coefficient
    hidden,  # [T, m] float32, sketches of h; changed to coefficient / unit times these
    results,  # [RESULTS, T] float64
    labels,  # [T] int32, -1 where it lies outside the vocabulary
    owner,  # [T] int32, N of an ignored token
    offsets,  # [N + 1] int32
    buckets,  # [V] int32
    signs,  # [V] float32
    tokens,
    samples,
    m,
    BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    bucket = tl.program_id(1) * BUCKETS + tl.arange(0, BUCKETS)
    kept = bucket < m
    sample = tl.load(owner + t)
    unit = unit_of(results, offsets, sample, tokens, sample < samples, BLOCK)
    label = tl.maximum(tl.load(labels + t), 0)
    label_share = (tl.load(results + LABEL_SHARE * tokens + t)).to(tl.float32) * tl.load(
        signs + label
    )
    entry_share = tl.load(results + ENTRY_SHARE * tokens + t).to(tl.float32)
    coefficient = (tl.load(results + COEFFICIENT * tokens + t) / unit).to(tl.float32)
    at = t * m + bucket
    delta = tl.load(deltas + at, mask=kept, other=0.0) * entry_share
    own = bucket == tl.load(buckets + label)
    tl.store(deltas + at, delta - tl.where(own, label_share, 0.0), mask=kept)
    tl.store(hidden + at, tl.load(hidden + at, mask=kept, other=0.0) * coefficient, mask=kept)


@triton.jit(do_not_specialize=["tokens"])
def sketch_samples_kernel(
    sums,  # [N, m] float32, sketches over the unit of their sample
    results,  # [RESULTS, T] float64
    offsets,  # [N + 1] int32
    poison,  # [1] float64, NaN where all is lost, else 0
    sketches,  # [N, m] float64, written
    tokens,
    m,
    BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    bucket = tl.program_id(1) * BUCKETS + tl.arange(0, BUCKETS)
    kept = bucket < m
    unit = unit_of(results, offsets, i, tokens, True, BLOCK)
    row = tl.load(sums + i * m + bucket, mask=kept, other=0.0).to(tl.float64)
    tl.store(sketches + i * m + bucket, row * unit + tl.load(poison), mask=kept)
