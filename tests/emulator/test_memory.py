"""kernels/cuda/memory.cuh and sketch.cuh on the emulated device, against the CPU's."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled, float64
from remembering import counters, everyone
from right_answers import vectors

from oasis import operators, reference

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def problem(n, m, width, generator, selected=None):
    grads = torch.randn(n, width, generator=generator, dtype=torch.float64)
    memory = torch.randn(m, width, generator=generator, dtype=torch.float64)
    memory[m // 2] = grads[0]
    filled = counters(m if selected is None else selected)
    return grads @ grads.T, 3 * grads, everyone(n), memory, filled, 0.1


def assert_same(got, want, gram, tolerance=1e-12):
    assert cosine_scaled(got[0] - want[0], gram).max() < tolerance
    assert (got[1] - want[1]).abs().max() <= tolerance * want[1].abs().max()


@pytest.mark.parametrize("case", vectors("memory"), ids=lambda c: c["name"])
def test_vectors(device, case):
    gram, sketch, memory, left, scaled = (
        float64(case[name]) for name in ("gram", "sketch", "memory", "left", "scaled")
    )
    filled = counters(len(memory))
    got = device.remembered(gram, sketch, everyone(len(gram)), memory, filled, case["ridge"])
    assert_same(got, (left, scaled), gram, 1e-13)


@pytest.mark.parametrize(
    ("n", "m", "width"),
    [(1, 1, 1), (3, 2, 40), (16, 40, 33), (33, 5, 130), (5, 70, 9), (2, 33, 512)],
)
def test_as_the_cpu(device, n, m, width, generator):
    arguments = problem(n, m, width, generator)
    assert_same(device.remembered(*arguments), operators.remembered(*arguments), arguments[0])


@pytest.mark.parametrize("selected", [-3, 0, 1, 4, 5, 2**40])
def test_only_the_filled_rows_are_read(device, selected, generator):
    arguments = problem(4, 5, 12, generator, selected)
    arguments[3][max(selected, 0) :] = torch.nan
    got = device.remembered(*arguments)
    assert_same(got, operators.remembered(*arguments), arguments[0])
    assert selected > 0 or torch.equal(got[0], arguments[0])


def test_samples_that_are_not_valid_do_not_count(device, generator):
    gram, sketch, valid, *rest = problem(6, 5, 12, generator)
    for lost in ([1, 4], range(6)):
        valid[list(lost)] = False
        sketch[list(lost)] = torch.nan
        left = torch.where(valid & valid[:, None], gram, 0.0)
        got = device.remembered(left, sketch, valid, *rest)
        assert_same(got, operators.remembered(left, sketch, valid, *rest), gram)


def test_more_threads_than_one_block_has(device, generator):
    arguments = problem(250, 8, 5, generator)
    assert_same(device.remembered(*arguments), operators.remembered(*arguments), arguments[0])


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_no_schedule_changes_a_bit(device, tsan, order, generator):
    arguments = problem(9, 40, 20, generator)
    first = device.remembered(*arguments)
    for emulated in (device, tsan):
        emulated.configure(order=order)
        got = emulated.remembered(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(got, first, strict=True))


@pytest.mark.parametrize("m", [1, 3, 5, 100])
def test_the_ring_is_the_cpus(device, m, generator):
    memory, total = torch.zeros(m, 200, dtype=torch.float64), 0
    want = memory.clone()
    for step in range(10):
        rows = torch.randn(7, 200, generator=generator, dtype=torch.float64)
        mask = torch.rand(7, generator=generator) < step / 8
        total += int(mask.sum())
        device.remember(rows, mask, counters(total), memory)
        operators.remember_(rows, mask, counters(total), want)
        assert torch.equal(memory, want)
    device.remember(rows, everyone(7), counters(6), memory)  # not counted: written nowhere
    assert torch.equal(memory, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("count", "dim"), [(1, 1), (9, 512), (65, 64), (700, 300), (3000, 16), (1200, 7)]
)
def test_sketches_are_the_cpus(device, dtype, count, dim, generator):
    grads = torch.randn(3, count, generator=generator).to(dtype)
    got = device.sketch(grads, dim, seed=5, exact=count <= dim)
    want = operators.grad_sketch([grads], dim, 5)
    assert (got - want).abs().max() <= 1e-13 * want.abs().max()


def test_parameters_follow_one_another(device, generator):
    grads = [torch.randn(3, p, generator=generator) for p in (7, 1, 100, 64, 601)]
    first, out = 0, torch.zeros(3, 32, dtype=torch.float64)
    for g in grads:
        out = device.sketch(g, 32, seed=2, first=first, out=out)
        first += g.shape[1]
    want = reference.grad_sketch(grads, 32, 2)
    assert (out - want).abs().max() <= 1e-13 * want.abs().max()
