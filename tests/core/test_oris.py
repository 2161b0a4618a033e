"""ORIS: thresholds, running statistics, relative informativeness, the draw."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from comparing import assert_relative, float64
from hypothesis import given
from hypothesis import strategies as st
from oris_steps import Stream
from right_answers import vectors

import oasis
from oasis import reference
from oasis.names import DRAWS, RECURSIONS, SCALES


@pytest.mark.parametrize("case", vectors("threshold"), ids=lambda c: str(c["ratio"]))
def test_threshold_vectors(case):
    assert abs(oasis.threshold(case["ratio"]) - case["threshold"]) < 1e-9


@given(st.floats(1e-6, 1 - 1e-6), st.sampled_from([0.2, 0.5, 1, 7]))
def test_threshold_equals_the_reference(ratio, temperature):
    got = oasis.threshold(ratio, temperature)
    assert abs(got - reference.threshold(ratio, temperature)) < 1e-9 * max(1, temperature)


def test_a_cold_draw_has_the_normal_quantile():
    for ratio in (0.01, 0.25, 0.9):
        quantile = NormalDist().inv_cdf(1 - ratio)
        assert abs(oasis.threshold(ratio, 0.01) - quantile) < 5e-4


def test_the_printed_thresholds_belong_to_half_the_temperature():
    """The paper prints 2.06, 1.53, 0.89: docs/method.md 4."""
    printed = {0.0625: 2.06, 0.125: 1.53, 0.25: 0.89}
    for ratio, value in printed.items():
        assert round(oasis.threshold(ratio, 0.5), 2) == value


@pytest.mark.parametrize("temperature", [0, -1, 0.009, 101, math.nan])
def test_temperature_out_of_range(temperature):
    with pytest.raises(ValueError, match=r"temperature: got .*\[0.01, 100\]"):
        oasis.threshold(0.25, temperature)
    with pytest.raises(ValueError, match=r"temperature: got .*\[0.01, 100\]"):
        oasis.Selector(temperature=temperature)


def test_threshold_ends():
    assert oasis.threshold(1) == -math.inf
    assert oasis.threshold(1e-5) > oasis.threshold(1e-4) > oasis.threshold(0.999)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5, math.nan, math.inf])
def test_threshold_out_of_range(ratio):
    with pytest.raises(ValueError, match=r"ratio.*\(0, 1\]"):
        oasis.threshold(ratio)


@pytest.mark.parametrize("ratio", ["0.25", None, True, 1j])
def test_threshold_of_no_number(ratio):
    with pytest.raises(TypeError, match="ratio"):
        oasis.threshold(ratio)


@pytest.mark.parametrize("scale", ["sample", "batch", "raw"])
def test_ema_vectors(scale):
    data, stream, compared = vectors("ema"), Stream(), 0
    for batch in data["batches"]:
        raw, adjusted = float64(batch["informativeness"]), float64(batch["adjusted"])
        relative, probability, _ = stream.step(raw, adjusted, scale=scale, beta=data["beta"])
        if "relative" in batch:
            assert_relative(relative, batch["relative"][scale], 1e-12, floor=1.0)
            assert_relative(probability, torch.sigmoid(relative - 0.5), 1e-12)
            compared += 1
        assert_relative(stream.selector.mean, batch["mean_after"], 1e-12)
        assert_relative(stream.selector.variance, batch["variance_after"], 1e-12, floor=1e-300)
    assert compared >= 3


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("warmup", [0, 1, 13])
@pytest.mark.parametrize("recursion", RECURSIONS)
@pytest.mark.parametrize("beta", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_stream_against_the_reference(scale, warmup, recursion, beta, draw, temperature, generator):
    stream, statistics = Stream(seed=2**40 + 5), reference.Statistics()
    offset = candidates = selected = 0
    for n in (8, 3, 1, 16, 17, 5):
        raw = torch.rand(n, generator=generator, dtype=torch.float64) * 7
        adjusted = raw - torch.rand(n, generator=generator, dtype=torch.float64)
        valid = torch.rand(n, generator=generator) < 0.8
        valid[0] = True
        start = {"warmup": warmup, "recursion": recursion}
        want = reference.relative(raw, adjusted, statistics, scale=scale, valid=valid, **start)
        statistics = reference.update(raw, statistics, beta=beta, valid=valid, **start)
        options = {"scale": scale, "beta": beta, "draw": draw, "temperature": temperature}
        relative, probability, mask = stream.step(raw, adjusted, valid, **options, **start)
        assert_relative(relative, want, 1e-12, floor=1.0)
        chance = torch.where(valid, torch.sigmoid((want - 0.5) / temperature), 0.0)
        assert_relative(probability, chance, 1e-11, floor=1e-3)
        candidates += int(valid.sum())
        due = candidates // 4 - selected  # of the ratio 1/4
        chosen = reference.draw(probability, relative, valid, draw, 2**40 + 5, offset, due)
        assert torch.equal(mask, chosen)
        selected += int(mask.sum())
        assert not mask[~valid].any()
        offset += n if draw == "bernoulli" else 1
        selector = stream.selector
        assert_relative(selector.mean, statistics.mean, 1e-12)
        assert_relative(selector.variance, statistics.variance, 1e-12, floor=1e-12)
        assert_relative(selector.within, statistics.within, 1e-12)
        assert selector.threshold == 0.5, "steering is off"


def test_an_empty_batch_leaves_the_statistics_alone(generator):
    stream = Stream()
    raw = torch.rand(5, generator=generator, dtype=torch.float64)
    stream.step(raw)
    before = stream.statistics.clone()
    candidates = stream.selector.candidates.clone()
    nothing = torch.zeros(5, dtype=torch.bool)
    relative, probability, mask = stream.step(raw, valid=nothing)
    assert (relative == 0).all() and (probability == 0).all() and not mask.any()
    assert torch.equal(stream.statistics, before)
    assert stream.selector.candidates == candidates and stream.selector.batches == 1


def test_what_is_not_valid_is_not_read(generator):
    raw = torch.rand(6, generator=generator, dtype=torch.float64)
    valid = torch.tensor([True, False, True, True, False, True])
    clean, dirty = Stream(), Stream()
    want = clean.step(raw, valid=valid)
    spoiled = raw.clone()
    spoiled[1], spoiled[4] = math.nan, math.inf
    got = dirty.step(spoiled, valid=valid)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert torch.equal(dirty.statistics, clean.statistics)
    assert torch.isfinite(dirty.statistics).all()


@pytest.mark.parametrize("draw", [draw for draw in DRAWS if draw != "even"])
def test_mean_of_draws_converges_to_probability(draw, generator):
    raw = torch.rand(6, generator=generator, dtype=torch.float64)
    trials, hits, counts = 8000, torch.zeros(6, dtype=torch.float64), []
    stream = Stream(seed=11)
    for _ in range(trials):
        stream.statistics[0] = 0.0
        stream.counters[:2] = 0  # every trial a first batch; the generator moves on
        _, probability, mask = stream.step(raw, draw=draw)
        hits += mask
        counts.append(int(mask.sum()))
    assert (probability > 0.05).all() and (probability < 0.95).all()
    expected = float(probability.sum())
    if draw == "top":  # the expected number, rounded at random; of the six those with the largest z
        whole, rest = divmod(expected, 1)
        assert set(counts) == {int(whole), int(whole) + 1}
        more = sum(c > whole for c in counts) / trials
        assert abs(more - rest) < 4 * (rest * (1 - rest) / trials) ** 0.5
        best = raw.argsort(descending=True)
        assert (hits[best[: int(whole)]] == trials).all() and (
            hits[best[int(whole) + 1 :]] == 0
        ).all()
        return
    deviation = (probability * (1 - probability) / trials).sqrt()
    assert ((hits / trials - probability).abs() < 4 * deviation).all()
    spread = float(torch.tensor(counts).double().var())
    independent = float((probability * (1 - probability)).sum())
    if draw == "systematic":
        assert all(abs(c - expected) < 1 for c in counts)
    elif draw == "bernoulli":
        assert abs(spread / independent - 1) < 0.1
    else:
        assert spread > 2 * independent


def test_the_draw_even_gives_every_batch_its_share():
    # By hand, ratio 1/4: of 3 candidates 0 are due, of 6 1, of 9 2, of 17 4; the largest z.
    stream = Stream(threshold=-50.0)  # every P is 1
    three = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    masks = [stream.step(three, draw="even")[2].tolist() for _ in range(3)]
    assert masks == [[False] * 3, [False, True, False], [False, True, False]]
    _, _, mask = stream.step(torch.arange(8).double(), draw="even")
    assert mask.nonzero().flatten().tolist() == [6, 7]


def test_equal_scores_are_not_told_apart_by_rounding():
    stream = Stream()
    for _ in range(3):
        score = torch.full((4,), 0.1, dtype=torch.float64) * 3
        score[1] = score[1] * (1 + 2**-52)
        relative, _, _ = stream.step(score, scale="within")
        assert relative.abs().max() < 1e-6


@pytest.mark.parametrize("scale", SCALES)
def test_one_sample_batches(scale, generator):
    stream = Stream()
    for _ in range(20):
        raw = torch.rand(1, generator=generator, dtype=torch.float64)
        relative, probability, _ = stream.step(raw, scale=scale)
        assert torch.isfinite(relative).all()
        assert 0 <= probability <= 1
