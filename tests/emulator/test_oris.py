"""kernels/cuda/oris.cuh and select.cuh on the emulated device, against the CPU and the vectors."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, float64
from oris_steps import ORIS_PLAIN as PLAIN
from oris_steps import fresh_state as state
from random_grams import random_gram
from right_answers import vectors

from oasis import names, operators
from oasis.names import COUNTERS, DRAWS, SCALES, WRONGS
from oasis.operators.buffers import Selected


def assert_same(got, want):
    for g, w in zip(got, want, strict=True):
        if w.dtype == torch.float64:
            assert_relative(g, w, 1e-12, floor=1.0)
        else:
            assert torch.equal(g, w)


@pytest.mark.parametrize("scale", ["sample", "batch", "raw"])
def test_vectors(device, scale):
    data, compared = vectors("ema"), 0
    statistics, counters = state()
    for batch in data["batches"]:
        raw, adjusted = float64(batch["informativeness"]), float64(batch["adjusted"])
        valid = torch.ones(len(raw)).bool()
        options = {**PLAIN, "scale": scale, "beta": data["beta"]}
        relative, _, _ = device.oris(raw, adjusted, valid, statistics, counters, **options)
        if "relative" in batch:
            assert_relative(relative, batch["relative"][scale], 1e-12, floor=1.0)
            compared += 1
        assert_relative(statistics[0], batch["mean_after"], 1e-12)
        assert_relative(statistics[1], batch["variance_after"], 1e-12, floor=1e-300)
    assert compared >= 3


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(("warmup", "recursion"), [(0, "equations"), (9, "released")])
def test_a_stream_equals_the_cpu(device, scale, draw, warmup, recursion, generator):
    ours, theirs = state(seed=2**40 + 5), state(seed=2**40 + 5)
    options = {**PLAIN, "scale": scale, "draw": draw, "warmup": warmup, "recursion": recursion}
    options |= {"gain": 0.1, "slack": 0.005, "temperature": 0.4}
    for n in (8, 3, 1, 16, 17, 300, 5):
        raw = torch.rand(n, generator=generator, dtype=torch.float64) * 7
        adjusted = raw - torch.rand(n, generator=generator, dtype=torch.float64)
        valid = torch.rand(n, generator=generator) < 0.8
        raw[~valid] = torch.nan
        adjusted[~valid] = torch.inf
        if n == 3:
            valid[:] = False
        got = device.oris(raw, adjusted, valid, *ours, **options)
        want = operators.oris_(raw, adjusted, valid, *theirs, names.pack(**options))
        assert_same(got, want)
        assert_same(ours, theirs)


@pytest.mark.parametrize("method", ["exact", "pairwise", "residual", "none"])
@pytest.mark.parametrize("draw", DRAWS)
def test_one_launch_equals_three(device, method, draw, generator):
    ours, theirs = state(seed=9), state(seed=9)
    options = {**PLAIN, "scale": "within", "draw": draw, "gain": 0.1, "slack": 0.005}
    for n in (*range(1, 17), 16):
        grads = torch.randn(n, 20, generator=generator, dtype=torch.float64)
        grads[n // 2] = grads[0]
        gram = grads @ grads.T
        gram = (gram + gram.T) / 2
        valid = None if n == 16 else torch.rand(n, generator=generator) < 0.9
        stop, threshold = n % 2 == 0, ours[0][-1].clone()
        got = device.select(gram, valid, *ours, method, 0.01, stop, **options)
        left, raw, kept, skipped, wrong = device.usable(gram, valid)
        floor = -torch.inf
        if stop:
            floor = float(operators.oris_stop(raw, kept, *theirs, names.pack(**options)))
        adjusted, order = device.siren(left, method, 0.01, kept, floor)
        want = raw, adjusted, *device.oris(raw, adjusted, kept, *theirs, **options)
        want = Selected(*want[:4], order, want[4], skipped, threshold, wrong)
        for name, g, w in zip(Selected._fields, got, want, strict=True):
            assert torch.equal(g, w), name
        assert all(torch.equal(g, w) for g, w in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("method", ["exact", "mean_field", "residual"])
def test_of_a_wrong_batch_one_launch_selects_nothing(device, method, generator):
    gram = random_gram(9, 20, generator)
    gram[6, 6] = torch.nan
    statistics, counters = state()
    before = statistics.clone()
    got = device.select(gram, None, statistics, counters, method, stop=True, **PLAIN)
    assert got.fault == WRONGS["skipped"] and got.skipped.nonzero().flatten().tolist() == [6]
    assert not got.mask.any() and (got.order == -1).all()
    assert all((x == 0).all() for x in got[:4])
    assert torch.equal(statistics, before)
    assert counters[COUNTERS["skipped"]] == counters.sum() == 9


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("draw", DRAWS)
def test_ratio_one_selects_every_valid_sample_whatever_z(device, scale, draw, generator):
    for beta in (5e-324, 1e-310, 1e-160):
        statistics, counters = state()
        statistics[-1] = -torch.inf
        options = {**PLAIN, "ratio": 1.0, "scale": scale, "draw": draw, "beta": beta}
        for step in range(6):
            raw = torch.rand(9, generator=generator, dtype=torch.float64)
            raw *= 10.0 ** (0, 0, 0, 60, -60, 0)[step]
            valid = torch.arange(9) != 3
            relative, _, mask = device.oris(raw, raw, valid, statistics, counters, **options)
            assert torch.equal(mask, valid) and torch.isfinite(relative).all()


def test_one_launch_is_refused_where_it_does_not_fit(device):
    gram, valid = torch.eye(16).double(), torch.ones(16).bool()
    device.configure(shared=99 * 1024)  # as on sm_86 and sm_89
    statistics, counters = state()
    before = statistics.clone(), counters.clone()
    with pytest.raises(ValueError, match="does not fit"):
        device.select(gram, valid, statistics, counters, **PLAIN)
    assert torch.equal(statistics, before[0]) and torch.equal(counters, before[1])
    adjusted, _ = device.siren(gram)
    assert (adjusted == 1).all(), "the grid takes over"


def test_threads(tsan, generator):
    for draw in DRAWS:
        options = {**PLAIN, "draw": draw, "gain": 0.1, "slack": 0.005}
        raw = torch.rand(40, generator=generator, dtype=torch.float64)
        tsan.oris(raw, raw, torch.ones(40).bool(), *state(), **options)
        for method in ("exact", "residual"):
            gram = torch.diag(raw[:12])
            valid = torch.ones(12).bool()
            tsan.select(gram, valid, *state(), method, **options)
