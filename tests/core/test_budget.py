"""The budget loop: the cap, the floor, the steering between them, and what they leave to choose."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from comparing import assert_relative

import oasis
from bench import budget as bench
from oasis import operators, reference
from oasis.names import DRAWS


def step(selector, raw, valid=None):
    """(relative, probability, mask) of one batch of scores."""
    valid = torch.ones(len(raw), dtype=torch.bool) if valid is None else valid
    options = selector.preset.options(selector.ratio)
    return operators.oris_(raw, raw, valid, selector.statistics, selector.counters, options)


def check_band(selected, ratio, early=200):
    """Never above the budget, at most 3 % below it after 200 batches and 0.5 % after 2,000."""
    total = selected.cumsum(0)
    due = ratio * 16 * torch.arange(1, len(total) + 1)
    assert (total <= due).all()
    assert total[early - 1] >= 0.97 * due[early - 1]
    assert total[1999] >= 0.995 * due[1999]


@pytest.mark.parametrize("ratio", [0.0625, 0.25])
@pytest.mark.parametrize("stream", bench.STREAMS)
def test_lands_just_below_the_target(stream, ratio):
    raw = bench.scores(stream, 2000, seed=11)
    selected, _ = bench.follow(oasis.Selector(ratio, siren="none", seed=5), raw)
    check_band(selected, ratio)


@pytest.mark.parametrize(("stream", "ratio"), [("iid", 0.0625), ("shifting", 0.5)])
def test_lands_just_below_the_target_with_siren(stream, ratio):
    raw = bench.scores(stream, 2000, seed=12)
    kernels = bench.grams(raw, seed=12)
    rule = {"method": "residual", "ridge": 1.0}  # the default
    adjusted = torch.stack([oasis.siren(kernel, **rule).adjusted for kernel in kernels])
    assert (adjusted - raw).abs().mean() > 0.1 * raw.mean(), "no redundancy, no test"
    selected, _ = bench.follow_grams(oasis.Selector(ratio, seed=5), kernels)
    check_band(selected, ratio)


@pytest.mark.parametrize("draw", DRAWS)
def test_hostile_streams_stay_inside_the_band(draw):
    """Scores that rise 1000-fold for 40 batches and fall back to where nothing is worth drawing."""
    raw = bench.scores("iid", 2000, seed=1)
    raw *= torch.where((torch.arange(2000) // 40) % 2 == 1, 1000.0, 1.0).unsqueeze(1)
    selected, _ = bench.follow(oasis.Selector(0.125, draw=draw, beta=0.01), raw)
    check_band(selected, 0.125)


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize(("ratio", "least"), [(0.0625, 4.5), (0.125, 4.0), (0.25, 3.0)])
def test_informative_batches_keep_what_they_draw(ratio, period, least):
    raw = bench.alternating(period, 2000, seed=3)
    selected, _ = bench.follow(oasis.Selector(ratio, siren="none"), raw)
    assert bench.factor(selected, period) > least
    check_band(selected, ratio)


def test_the_loop_takes_little_from_a_fixed_threshold():
    """At 25 and 50 % the slack holds what phases of a few batches move, so nothing is lost."""
    for ratio, period in ((0.25, 1), (0.25, 4), (0.5, 1), (0.5, 4), (0.5, 8)):
        raw = bench.alternating(period, 2000, seed=4)
        selected, relative = bench.follow(oasis.Selector(ratio, siren="none"), raw)
        ideal = bench.factor(bench.fixed(relative, ratio), period)
        assert bench.factor(selected, period) > 0.9 * ideal


def test_a_long_stream_saves_up_for_long_phases():
    # 0.45 % of 8,000 batches are 36: enough for 16 batches at twice the mean.
    raw = bench.alternating(16, 8000, seed=4)
    selector = oasis.Selector(0.25, siren="none", beta=0.05)
    selected, relative = bench.follow(selector, raw)
    ideal = bench.factor(bench.fixed(relative[4000:], 0.25), 16)
    assert bench.factor(selected[4000:], 16) > 0.85 * ideal > 2


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("slack", [0.0045, 0.0, 1e-9])
@pytest.mark.parametrize("ratio", [0.0625, 0.4])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_a_stream_against_the_reference(draw, slack, ratio, temperature, generator):
    gain = 0.1 if slack else 0.0
    selector = oasis.Selector(
        ratio, draw=draw, gain=gain, slack=slack, temperature=temperature, seed=7
    )
    threshold, offset, batches, candidates, selected = float(selector.threshold), 0, 0, 0, 0
    dropped = added = 0
    for t in range(150):
        n = (16, 3, 1, 70, 16)[t % 5]
        raw = torch.rand(n, generator=generator, dtype=torch.float64).exp() * 10 ** (t // 20 % 3)
        if t % 7 == 0:
            raw[:] = raw[0]  # ties
        valid = torch.rand(n, generator=generator) < 0.8
        relative, probability, mask = step(selector, raw, valid)
        count = int(valid.sum())
        chance = torch.sigmoid((relative[valid] - threshold) / temperature)
        assert_relative(probability[valid], chance, 1e-11)
        assert (probability[~valid] == 0).all()
        if count:
            due = math.floor(ratio * (candidates + count)) - selected
            drawn = reference.draw(probability, relative, valid, draw, 7, offset, due)
            batches, candidates = batches + 1, candidates + count
            keep = int(drawn.sum())
            if slack:
                least, most = reference.bounds(ratio, slack, selected, candidates, batches)
                keep = min(max(keep, least - selected), most - selected, count)
            wanted = reference.settle(drawn, relative, valid, keep, draw, 7, offset, temperature)
            assert torch.equal(mask, wanted)
            dropped, added = dropped + (keep < drawn.sum()), added + (keep > drawn.sum())
            selected, offset = selected + keep, offset + (n if draw == "bernoulli" else 1)
            if gain:
                threshold = reference.steer(
                    threshold, ratio=ratio, gain=gain, slack=slack, kept=keep, count=count,
                    expected=math.fsum(probability.tolist()), selected=selected,
                    candidates=candidates, batches=batches,
                )  # fmt: skip
            assert_relative(selector.threshold, threshold, 1e-11)
            threshold = float(selector.threshold)
        assert (selector.selected, selector.candidates) == (selected, candidates)
    bounded = bool(slack) and draw != "even"  # which stays inside the bounds by itself
    assert bool(dropped) == bool(added) == bounded, "every case was met"


def test_a_hand_worked_cap_and_floor():
    # Ratio 1/4, 8 candidates: 2 are due. Threshold -inf draws all, +inf none.
    raw = torch.tensor([1.0, 5, 5, 2, 5, 3, 0, 4], dtype=torch.float64)
    for threshold, before, wanted in (
        (-math.inf, 0, [1, 2]),  # three share the best score: the first two
        (-math.inf, 1, [1]),
        (-math.inf, 9, []),  # a state from elsewhere may be beyond the cap
        (math.inf, 0, []),  # two samples may always be owed
    ):
        selector = oasis.Selector(0.25, draw="shared", gain=0.0, slack=1e-9)
        selector.statistics[-1] = threshold
        selector.counters[2] = before
        assert step(selector, raw)[2].nonzero().flatten().tolist() == wanted
    selector = oasis.Selector(0.25, draw="shared", gain=0.0, slack=1e-9)
    selector.statistics[-1] = math.inf
    picks = [step(selector, raw)[2].nonzero().flatten().tolist() for _ in range(3)]
    assert picks == [[], [1, 2], [1, 2]]


def test_what_is_dropped_would_have_needed_the_lowest_threshold(generator):
    """The mask under the cap is the draw, with the same numbers, at a higher threshold."""
    raw = torch.rand(64, generator=generator, dtype=torch.float64)
    capped = oasis.Selector(0.25, draw="bernoulli", gain=0.0, seed=2)
    capped.statistics[-1] = -2.0
    relative, _, mask = step(capped, raw)
    assert mask.sum() == 16
    r = reference.uniform(2, 0, 64)
    higher = [torch.sigmoid(relative - t) > r for t in torch.linspace(-2, 4, 2000)]
    assert any(torch.equal(m, mask) for m in higher)


def test_the_other_presets_have_no_cap():
    raw = torch.full((16,), 2.0, dtype=torch.float64)
    for preset in ("paper", "released"):
        selector = oasis.Selector(0.25, preset=preset)
        assert selector.preset.slack == selector.preset.gain == 0
        selector.statistics[-1] = -50.0
        assert step(selector, raw)[2].all()
        assert selector.threshold == -50


@pytest.mark.parametrize("ratio", [0.0625, 0.3])
def test_batches_of_any_size(ratio, generator):
    """One at a time, by hundreds, and with batches in which nothing counts."""
    for sizes in ([1], [200], [1, 64, 3, 300]):
        selector, total = oasis.Selector(ratio, siren="none"), 0
        while total < 6000:
            n = sizes[int(selector.batches) % len(sizes)]
            raw = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
            step(selector, raw)
            total += n
            before = selector.state_dict()
            before = {k: v.clone() for k, v in before.items() if k == "statistics"}
            if total % 5 == 0:
                step(selector, raw, torch.zeros(n, dtype=torch.bool))
            assert torch.equal(selector.statistics, before["statistics"])
            assert selector.selected <= ratio * total
        assert selector.candidates == total
        assert selector.selected >= 0.93 * ratio * total


def test_ratio_one_and_equal_scores():
    for ratio in (1.0, 0.999, 0.5, 0.001):
        selector = oasis.Selector(ratio, siren="none")
        raw = torch.full((16,), 3.0, dtype=torch.float64)
        for _ in range(300):
            mask = step(selector, raw)[2]
            assert selector.selected <= ratio * selector.candidates
        assert mask.all() or ratio < 1
        assert torch.isfinite(selector.statistics[:3]).all() and not selector.threshold.isnan()
        assert selector.selected >= 0.95 * ratio * selector.candidates - 2


def test_a_resumed_stream_draws_the_same():
    raw = bench.scores("shifting", 400, seed=2)
    whole = oasis.Selector(0.125, siren="none", seed=3)
    wanted = [step(whole, x)[2] for x in raw]
    first = oasis.Selector(0.125, siren="none", seed=3)
    for x in raw[:197]:  # just after a shift, where the cap is at work
        step(first, x)
    resumed = oasis.Selector(0.125, siren="none", seed=99)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    for x, mask in zip(raw[197:], wanted[197:], strict=True):
        assert torch.equal(step(resumed, x)[2], mask)
    assert torch.equal(resumed.statistics, whole.statistics)
    assert torch.equal(resumed.counters, whole.counters)


@pytest.mark.parametrize("slack", [-0.1, 1, math.nan, math.inf])
def test_slack_out_of_range(slack):
    with pytest.raises(ValueError, match=r"slack.*\[0, 1\)"):
        oasis.Selector(slack=slack)


def test_steering_needs_slack():
    with pytest.raises(ValueError, match="slack: got 0, expected"):
        oasis.Selector(slack=0.0)
    with pytest.raises(TypeError, match="slack: got True"):
        oasis.Selector(slack=True)
