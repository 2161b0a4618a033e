"""Heads whose tokens peak anywhere in the vocabulary: what a pass by blocks has to get right.

Every token has an axis of its own, on which the head has the token's peaks, and all share one with
small numbers. All numbers are dyadic and short, so that logits are exact in every type, and a
result's error is that of the method alone.
"""

from __future__ import annotations

from itertools import product

import torch
from comparing import assert_relative, cosine_scaled

VOCABULARY = 2000
# Where a token peaks (as a share of the vocabulary) and how high.
PEAKS = {
    "nowhere": {},
    "in the first block": {0.01: 30},
    "in the middle": {0.5: 12, 0.52: 60},
    "in the last block": {0.99: 100},
    "rising": {0.1: 17, 0.3: 35, 0.6: 70, 0.9: 100},
    "falling": {0.1: 100, 0.4: 60, 0.7: 35, 0.95: 18},
    "rising within a block": {0.7: 20, 0.701: 40, 0.702: 80},
}
# Where its label lies: at its own highest peak (or anywhere), or before or after all of them, or at
# the peak of another token.
LABELS = ("own", 0.002, 0.35, 0.998, 0.99)


def peaked_head(
    dtype=torch.float64, *, tokens_per_sample: int = 1, vocabulary: int = VOCABULARY
) -> dict:
    """Arguments of head_gram: a token for every kind of peak and every place of its label."""
    kinds = list(product(PEAKS.values(), LABELS))
    count, width = len(kinds), len(kinds) + 1
    g = torch.Generator().manual_seed(5)
    weight = torch.zeros(vocabulary, width)
    weight[:, -1] = torch.randint(-32, 33, (vocabulary,), generator=g) / 16
    hidden = torch.eye(count, width)
    hidden[:, -1] = torch.tensor([0.5, -0.5]).repeat(count)[:count]
    labels = torch.empty(count, dtype=torch.int64)
    for t, (peaks, label) in enumerate(kinds):
        for place, height in peaks.items():
            weight[int(place * vocabulary), t] = height
        if label == "own":
            label = max(peaks, key=peaks.get, default=0.8)
        labels[t] = int(label * vocabulary)
    # Neighbours in the list are of one kind: samples of several tokens take them from afar.
    order = torch.randperm(count, generator=g)
    return {
        "hidden": hidden[order].to(dtype),
        "weight": weight.to(dtype),
        "labels": labels[order],
        "sample": torch.arange(count) // tokens_per_sample,
        "num_samples": -(-count // tokens_per_sample),
    }


def assert_right(got, want, bound, metrics=None):
    """Every entry relative to its norms, every metric relative to itself."""
    error = cosine_scaled(got.gram - want.gram, want.gram)
    at = divmod(int(error.argmax()), len(error))
    assert error.max() <= bound, (
        f"K{list(at)}: got {got.gram[at]:.6g}, want {want.gram[at]:.6g}; "
        f"{int((error > bound).sum())} of {error.numel()} entries are off by more than {bound:g}"
    )
    bound = metrics or bound
    assert_relative(got.loss, want.loss, bound)
    assert_relative(got.el2n, want.el2n, bound)
    # Of a token that is sure of another answer than its label's, what is left after a difference of
    # numbers to about 16: absolute precision.
    assert_relative(got.entropy, want.entropy, bound, floor=10.0)
    assert got.correct.tolist() == want.correct.tolist()
