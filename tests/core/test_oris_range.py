"""ORIS where variances leave float64: tiny weights of the newest batch, tiny and huge scores."""

from __future__ import annotations

import math

import pytest
import torch
from comparing import assert_relative
from oris_steps import Stream

import oasis
from oasis import reference
from oasis.names import DRAWS, SCALES

TINY = [5e-324, 1e-310, 1e-300, 1e-160, 1e-20]


@pytest.mark.parametrize("beta", TINY)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("preset", ["calibrated", "paper", "released"])
def test_ratio_one_selects_every_valid_sample_whatever_z(preset, scale, beta, generator):
    for draw in DRAWS:
        selector = oasis.Selector(1.0, preset=preset, scale=scale, beta=beta, draw=draw, warmup=1)
        for step in range(6):
            scores = torch.rand(9, generator=generator, dtype=torch.float64) + 1e-3
            scores[3] = 0.0
            got = selector.select(gram=torch.diag(scores * 10.0 ** (0, 0, 0, 60, -60, 0)[step]))
            assert got.mask.tolist() == [i != 3 for i in range(9)]
            assert torch.isfinite(got.relative).all()
            assert (got.probability[got.mask] == 1).all()


@pytest.mark.parametrize("draw", DRAWS)
def test_ratio_one_does_not_look_at_z(draw):
    stream = Stream(threshold=-math.inf, ratio=1.0)
    raw = torch.tensor([1.0, 1.5, 1.2], dtype=torch.float64)
    adjusted = torch.tensor([-1e308, 1e308, 1.0], dtype=torch.float64)
    for _ in range(3):
        relative, probability, mask = stream.step(raw, adjusted, draw=draw, beta=1e-3)
        assert (probability == 1).all() and mask.all()


@pytest.mark.parametrize("beta", TINY)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("draw", DRAWS)
def test_z_is_finite_and_probabilities_are_numbers(draw, scale, beta, generator):
    selector = oasis.Selector(0.25, scale=scale, beta=beta, draw=draw, siren="none")
    statistics = reference.Statistics()
    for _ in range(8):
        scores = torch.rand(8, generator=generator, dtype=torch.float64).exp()
        got = selector.select(gram=torch.diag(scores))
        want = reference.relative(scores, scores, statistics, scale=scale)
        statistics = reference.update(scores, statistics, beta=beta)
        assert torch.isfinite(got.relative).all() and torch.isfinite(selector.statistics).all()
        assert ((got.probability >= 0) & (got.probability <= 1)).all()
        assert_relative(got.relative, want, 1e-9, floor=1.0)
        # z ranks as the scores do, also where `raw` divides by next to nothing.
        assert torch.equal(got.relative.argsort(), scores.argsort())


@pytest.mark.parametrize("exponent", [-480, -300, -250, 200, 240])
@pytest.mark.parametrize("scale", ["sample", "batch", "within"])
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_tiny_and_huge_scores_are_judged_as_all_others(preset, scale, exponent, generator):
    near, far = (
        oasis.Selector(0.25, preset=preset, scale=scale, warmup=1, siren="none") for _ in range(2)
    )
    for step in range(4):
        scores = torch.rand(8, generator=generator, dtype=torch.float64).exp()
        unit = torch.tensor(2 * exponent)
        want = near.select(gram=torch.diag(scores))
        got = far.select(gram=torch.diag(torch.ldexp(scores, unit)))
        if exponent > -255:
            assert torch.equal(got.relative, want.relative)
            assert torch.equal(got.mask, want.mask)
            continue
        # The running variance is no float64: every batch by its own statistics, as the first is.
        own = scores - scores.mean()
        deviation = own.square().mean().sqrt()
        if preset == "released":
            deviation = own.square().sum().div(7).sqrt()
        assert_relative(got.relative, own / deviation, 1e-9, floor=1.0)
        assert step or torch.equal(got.relative, want.relative)


def test_a_state_at_ratio_one_stops_nowhere():
    selector = oasis.Selector(1.0, preset="released", warmup=1, scale="raw", beta=5e-324)
    assert selector.threshold == -math.inf
    for factor in (1.0, 1e-100, 1e100):
        got = selector.select(gram=factor * torch.eye(5).double())
        assert got.mask.all() and len(got.order) == 5
