"""preset="released": the authors' code, followed on paper (docs/method.md 3.2).

What is expected is worked out here in plain floats, in the authors' order; nothing of the package
helps, and the uniforms are written down.
"""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from comparing import assert_relative

import oasis
from oasis import operators

# The upper quarter of a normal variable begins here.
QUANTILE = 0.6744897501960817
BETA = 0.9
# Philox4x32-10 with key 5 at counters 0, 1, ...: one number a batch.
UNIFORMS = [
    0.7659821515508518,
    0.3472211223554922,
    0.9636945105255795,
    0.6700757793575681,
    0.6833135494750833,
    0.5159973525619708,
]
# Gradients of five batches, and of one past warm-up: two to four samples in the plane.
BATCHES = [
    [(3.0, 0.0), (0.0, 1.0), (1.0, 1.0)],
    [(2.0, 1.0), (2.0, 1.0), (0.0, 2.0), (-1.0, 0.5)],
    [(1.0, 2.0), (0.5, -0.5)],
    [(0.3, 0.1), (2.5, 0.0), (2.4, 0.7)],
    [(1.5, 1.5), (-1.5, 1.4), (0.0, 3.0), (0.2, 0.1)],
    [(0.5, 2.0), (1.0, 1.0), (3.0, -1.0)],
]


def inner(a, b):
    return a[0] * b[0] + a[1] * b[1]


def adjusted_by_hand(grads, mean, deviation, threshold):
    """The loop runs while the largest (A - mean) / deviation exceeds the threshold; what it does
    not pick keeps its raw score."""
    raw = [inner(g, g) for g in grads]
    result, left, picked = list(raw), list(range(len(grads))), []
    while left:
        scores = {}
        for i in left:
            score = raw[i]
            for size in range(1, len(picked) + 1):
                for members in combinations(picked, size):
                    total = (sum(grads[u][0] for u in members), sum(grads[u][1] for u in members))
                    lengths = math.sqrt(inner(grads[i], grads[i]) * inner(total, total))
                    cosine = inner(grads[i], total) / lengths
                    average = sum(raw[u] for u in members) / size
                    score += (-1) ** size * cosine * average
            scores[i] = score
        best = max(left, key=lambda i: scores[i])
        if not (scores[best] - mean) / deviation > threshold:
            break
        result[best] = scores[best]
        picked.append(best)
        left.remove(best)
    return result, picked


def test_the_authors_order_by_hand():
    """A warm-up of nine samples: the third batch completes it and makes the first update."""
    selector = oasis.Selector(0.25, preset="released", seed=5, warmup=9)
    mean, variance = None, None  # of the stream
    seen, picks, masks = 0, 0, []
    for grads, r in zip(BATCHES, UNIFORMS, strict=True):
        raw = [inner(g, g) for g in grads]
        n = len(raw)
        own_mean = sum(raw) / n
        own_variance = sum((x - own_mean) ** 2 for x in raw) / (n - 1)
        m, s = own_mean, math.sqrt(own_variance)
        if mean is not None:
            m, s = mean, math.sqrt(variance)
        adjusted, order = adjusted_by_hand(grads, m, s, QUANTILE)
        z = [(a - m) / s for a in adjusted]
        chance = [1 / (1 + math.exp(QUANTILE - x)) for x in z]
        chosen = [p > r for p in chance]
        seen += n
        if mean is not None:
            mean = BETA * own_mean + (1 - BETA) * mean
            variance = BETA * (own_mean - mean) ** 2 + (1 - BETA) * variance
        elif seen >= 9:
            mean, variance = own_mean, own_variance

        got = selector.select(torch.tensor(grads, dtype=torch.float64))
        assert got.order.tolist() == order
        assert_relative(got.adjusted, adjusted, 1e-12, floor=1.0)
        assert_relative(got.relative, z, 1e-10, floor=1.0)
        assert_relative(got.probability, chance, 1e-10)
        assert got.mask.tolist() == chosen
        assert_relative(selector.mean, mean or 0.0, 1e-13)
        assert_relative(selector.variance, variance or 0.0, 1e-12)
        assert selector.threshold == got.threshold and abs(got.threshold - QUANTILE) < 1e-15
        picks, masks = picks + len(order), masks + chosen
    assert seen == 19 and 0 < picks < seen and any(masks) and not all(masks), "all was at work"


def test_the_warm_up_is_320_samples_of_whatever_batches():
    """20 batches of 16, or fewer of another size; samples that do not count are not counted."""
    for size, last in ((16, 20), (30, 11), (7, 46)):
        selector = oasis.Selector(0.25, preset="released")
        for batch in range(1, last + 2):
            score = torch.arange(1.0, size + 1, dtype=torch.float64) + batch
            gram = torch.diag(torch.cat([score, torch.zeros(2).double()]))
            got = selector.select(gram=gram)
            own = score.sum() / size
            deviation = ((score - own).square().sum() / (size - 1)).sqrt()
            if batch <= last:
                assert_relative(got.relative[:size], (got.adjusted[:size] - own) / deviation, 1e-12)
            else:  # by the batch before, alike but for its mean
                want = (got.adjusted[:size] - (own - 1)) / deviation
                assert_relative(got.relative[:size], want, 1e-12)
            started = batch >= last
            assert (selector.mean > 0) == (selector.variance > 0) == started
            if batch == last:
                assert_relative(selector.mean, own, 1e-14)
                assert_relative(selector.variance, deviation**2, 1e-13)


def warm(scores, mean, variance, threshold=QUANTILE):
    """A stream past its warm-up, and what it makes of these orthogonal gradients."""
    selector = oasis.Selector(0.25, preset="released", warmup=4)
    selector.statistics.copy_(torch.tensor([mean, variance, variance, threshold]))
    selector.counters[:2] = torch.tensor([1, 4])
    return selector, selector.select(gram=torch.diag(torch.tensor(scores, dtype=torch.float64)))


def test_the_stop_is_judged_by_the_stream_also_where_all_scores_are_equal():
    # (5 - 1) / 2 = 2 exceeds the threshold, (5 - 9) / 2 does not; nor does z = threshold.
    assert len(warm([5.0, 5.0, 5.0], 1.0, 4.0)[1].order) == 3
    assert len(warm([5.0, 5.0, 5.0], 9.0, 4.0)[1].order) == 0
    assert len(warm([5.0], 1.0, 4.0)[1].order) == 1
    assert len(warm([5.0, 2.0, 7.0], 1.0, 4.0, threshold=2.0)[1].order) == 1
    assert len(warm([5.0, 2.0, 7.0], 1.0, 4.0, threshold=-math.inf)[1].order) == 3


def test_a_variance_of_zero_leaves_a_batch_to_its_own_statistics():
    selector, got = warm([1.0, 2.0, 3.0, 6.0], 2.0, 0.0)
    own = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    assert_relative(got.relative, (own - 3) / math.sqrt(14 / 3), 1e-13)
    assert got.order.tolist() == [3], "the stop goes by the same: 3 + 0.67 x 2.16"
    # The update goes on from the stream's mean: 2.9, and 0.9 x 0.1^2.
    assert_relative(selector.mean, 2.9, 1e-14)
    assert_relative(selector.variance, 0.9 * 0.1**2, 1e-12)


def test_one_sample_has_no_unbiased_variance():
    selector = oasis.Selector(0.25, preset="released", warmup=1)
    got = selector.select(gram=torch.tensor([[4.0]]))
    assert got.relative.tolist() == [0.0] and got.order.numel() == 0
    assert (selector.mean, selector.variance) == (4.0, 0.0)


def test_the_stop_does_not_touch_the_state(generator):
    selector = oasis.Selector(preset="released")
    raw, valid = torch.rand(5, generator=generator).double(), torch.ones(5).bool()
    before = selector.statistics.clone(), selector.counters.clone()
    state = selector.statistics, selector.counters
    stop = operators.oris_stop(raw, valid, *state, selector.preset.options(0.25))
    assert_relative(stop, raw.mean() + QUANTILE * raw.std(), 1e-12)
    assert torch.equal(selector.statistics, before[0]) and torch.equal(selector.counters, before[1])
    nothing = torch.zeros(5).bool()
    assert operators.oris_stop(raw, nothing, *state, selector.preset.options(0.25)) == -math.inf


@pytest.mark.parametrize("name", ["current", "recursion"])
def test_a_state_of_another_version_is_refused(name):
    selector = oasis.Selector(preset="released")
    state = selector.state_dict()
    settings = bytes(state["_extra_state"].tolist()).replace(b"recursion", b"current")
    if name == "current":  # saved before the authors' order was right
        state["_extra_state"] = torch.tensor(list(settings), dtype=torch.uint8)
    else:
        more = b'{"later": 1, ' + bytes(state["_extra_state"].tolist())[1:]
        state["_extra_state"] = torch.tensor(list(more), dtype=torch.uint8)
    with pytest.raises(ValueError, match="state: saved by another version of oasis"):
        selector.load_state_dict(state)
