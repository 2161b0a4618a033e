"""What remembered samples cover, and the ring that holds them: `torch.ops.oasis.remembered`."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled, float64
from remembering import counters, everyone
from right_answers import vectors
from torch.library import opcheck

from oasis import operators, reference
from oasis.operators import memory as cpu

TESTS = ("test_schema", "test_faketensor", "test_autograd_registration")


def left(grads, memory, ridge=0.1, sketch=None):
    grads = grads.double()
    gram, sketch = grads @ grads.T, grads if sketch is None else sketch.double()
    arguments = gram, sketch, everyone(len(gram)), memory.double(), counters(len(memory))
    return operators.remembered(*arguments, ridge)[0]


def assert_same(got, want, gram, tolerance=1e-13):
    assert cosine_scaled(got - want, gram).max() < tolerance


@pytest.mark.parametrize("which", [operators, reference], ids=["core", "reference"])
@pytest.mark.parametrize("case", vectors("memory"), ids=lambda c: c["name"])
def test_vectors(case, which):
    gram, sketch, memory = (float64(case[name]) for name in ("gram", "sketch", "memory"))
    arguments = [gram, sketch, everyone(len(gram)), memory, case["ridge"]]
    if which is operators:
        arguments.insert(4, counters(len(memory)))
    got, scaled = which.remembered(*arguments)
    assert_same(got, float64(case["left"]), gram)
    assert (scaled - float64(case["scaled"])).abs().max() <= 1e-14 * scaled.abs().max()


@pytest.mark.parametrize("n", [1, 2, 16, 33])
@pytest.mark.parametrize("m", [1, 7, 64, 200])
@pytest.mark.parametrize("width", [1, 31, 512])
def test_any_size_against_the_formula(n, m, width, generator):
    grads = torch.randn(n, width, generator=generator, dtype=torch.float64)
    memory = torch.randn(m, width, generator=generator, dtype=torch.float64)
    gram = grads @ grads.T
    want = reference.remembered(gram, grads, everyone(n), memory, 0.1)[0]
    assert_same(left(grads, memory), want, gram, 1e-12)


def test_an_equal_candidate_keeps_the_ridge_of_itself(generator):
    grads = torch.randn(4, 40, generator=generator, dtype=torch.float64)
    others = torch.randn(5, 40, generator=generator, dtype=torch.float64)
    for memory in (grads[:1], torch.cat([others, grads[:1]]), grads[:1].repeat(3, 1)):
        kept = left(grads, memory)[0, 0]
        square, ridge = grads[0] @ grads[0], 0.1 * grads.square().sum(1).mean()
        assert 0 < kept <= square * ridge / (square + ridge) * (1 + 1e-12)
    kept = left(grads, grads[:1])[0, 0]
    assert abs(kept / (square * ridge / (square + ridge)) - 1) < 1e-12


def test_orthogonal_memories_change_nothing(generator):
    basis = torch.linalg.qr(torch.randn(30, 30, generator=generator, dtype=torch.float64))[0]
    grads = torch.randn(5, 12, generator=generator, dtype=torch.float64) @ basis[:12]
    memory = torch.randn(7, 18, generator=generator, dtype=torch.float64) @ basis[12:]
    assert_same(left(grads, memory), grads @ grads.T, grads @ grads.T, 1e-14)


@pytest.mark.parametrize("m", [1, 8, 40])
def test_positive_semi_definite(m, generator):
    grads = torch.randn(12, 9, generator=generator, dtype=torch.float64)
    memory = torch.randn(m, 9, generator=generator, dtype=torch.float64)
    got = left(grads, memory, ridge=1e-3)
    assert torch.equal(got, got.T)
    assert torch.linalg.eigvalsh(got).min() > -1e-12 * got.diagonal().max()
    assert (got.diagonal() <= grads.square().sum(1)).all()


def test_the_order_of_the_memory_does_not_matter(generator):
    grads = torch.randn(6, 50, generator=generator, dtype=torch.float64)
    memory = torch.randn(20, 50, generator=generator, dtype=torch.float64)
    memory[3] = memory[11]
    want = left(grads, memory)
    for _ in range(3):
        shuffled = memory[torch.randperm(20, generator=generator)]
        assert_same(left(grads, shuffled), want, grads @ grads.T)


@pytest.mark.parametrize("factor", [1e-20, 1e20, 1e-70, 1e70, 3.0])
def test_scaled_gradients_scale_what_is_left(factor, generator):
    grads = torch.randn(6, 50, generator=generator, dtype=torch.float64)
    memory = torch.randn(9, 50, generator=generator, dtype=torch.float64)
    got, want = left(factor * grads, factor * memory), left(grads, memory)
    assert_same(got / factor**2, want, grads @ grads.T)


@pytest.mark.parametrize("ratio", [1e-60, 1e60])
def test_memories_of_another_scale(ratio, generator):
    # Beside tiny memories the ridge is everything; huge ones cover their whole directions.
    grads = torch.randn(4, 50, generator=generator, dtype=torch.float64)
    memory = torch.randn(6, 50, generator=generator, dtype=torch.float64)
    want = grads @ grads.T
    if ratio > 1:
        inside = torch.linalg.qr(memory.T)[0]
        want = want - grads @ inside @ inside.T @ grads.T
    assert_same(left(grads, ratio * memory), want, grads @ grads.T, 1e-12)


def test_more_huge_memories_than_their_span(generator):
    # The ridge vanishes beside them, and 40 vectors of 10 numbers have a singular Gram matrix.
    grads = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    memory = torch.zeros(40, 20, dtype=torch.float64)
    memory[:, :10] = 1e30 * torch.randn(40, 10, generator=generator, dtype=torch.float64)
    outside = grads[:, 10:]
    assert_same(left(grads, memory), outside @ outside.T, grads @ grads.T, 1e-9)


def test_estimates_are_bounded_as_inner_products_are(generator):
    grads = torch.randn(8, 30, generator=generator, dtype=torch.float64)
    sketch, memory = (torch.randn(n, 3, generator=generator) for n in (8, 5))
    got = left(grads, memory, ridge=1e-4, sketch=sketch)
    norms = got.diagonal().sqrt()
    assert (got.diagonal() >= 0).all()
    assert (got.abs() <= norms * norms[:, None] * (1 + 1e-12)).all()
    plain = left(grads, memory[:0].new_zeros(1, 3), ridge=1e-4, sketch=sketch)
    assert not torch.allclose(got, plain)


def test_samples_that_are_not_valid_do_not_count(generator):
    grads = torch.randn(5, 20, generator=generator, dtype=torch.float64)
    memory = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    valid = torch.tensor([True, False, True, True, False])
    gram = torch.where(valid & valid[:, None], grads @ grads.T, 0.0)
    sketch = grads.clone()
    sketch[1], sketch[4] = torch.nan, torch.inf
    got, scaled = operators.remembered(gram, sketch, valid, memory, counters(4), 0.1)
    assert_same(got[valid][:, valid], left(grads[valid], memory), gram[valid][:, valid])
    assert (got[~valid] == 0).all() and (got[:, ~valid] == 0).all() and (scaled[~valid] == 0).all()
    nobody = torch.zeros_like(valid)
    got, scaled = operators.remembered(gram * 0, sketch, nobody, memory, counters(4), 0.1)
    assert (got == 0).all() and (scaled == 0).all()


def test_only_the_filled_rows_are_read(generator):
    grads = torch.randn(5, 20, generator=generator, dtype=torch.float64)
    memory = torch.full((9, 20), torch.nan, dtype=torch.float64)
    memory[:3] = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    gram = grads @ grads.T
    for selected, filled in ((0, 0), (-5, 0), (2, 2), (3, 3)):
        arguments = gram, grads, everyone(5), memory, counters(selected)
        got, _ = operators.remembered(*arguments, 0.1)
        assert torch.equal(got, left(grads, memory[:filled]) if filled else gram)
    memory[3:] = 0
    got, _ = operators.remembered(gram, grads, everyone(5), memory, counters(2**60), 0.1)
    assert_same(got, left(grads, memory[:3]), gram)


@pytest.mark.parametrize("m", [1, 3, 5, 100])
def test_the_ring_holds_the_last(m, generator):
    memory, kept, total = torch.zeros(m, 4, dtype=torch.float64), [], 0
    for step in range(12):
        rows = torch.randn(7, 4, generator=generator, dtype=torch.float64)
        mask = torch.rand(7, generator=generator) < step / 10
        total += int(mask.sum())
        operators.remember_(rows, mask, counters(total), memory)
        kept = (kept + [tuple(row) for row in rows[mask].tolist()])[-m:]
        filled = memory[: min(total, m)]
        assert {tuple(row) for row in filled.tolist()} == set(kept)
        assert (memory[min(total, m) :] == 0).all()


def test_counters_that_have_not_been_advanced_write_nothing(generator):
    rows, memory = torch.ones(4, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    for selected in (-(2**62), -1, 0, 3):
        operators.remember_(rows, everyone(4), counters(selected), memory)
        assert (memory == 0).all()


@pytest.mark.parametrize("m", [1, 6])
def test_as_torch_sees_them(m, generator):
    grads = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    memory = torch.randn(m, 9, generator=generator, dtype=torch.float64)
    arguments = (grads @ grads.T, grads, everyone(4), memory, counters(3), 0.1)
    opcheck(torch.ops.oasis.remembered.default, arguments, test_utils=TESTS)
    arguments = (grads, everyone(4), counters(4), memory)
    opcheck(torch.ops.oasis.remember_.default, arguments, test_utils=TESTS)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("gram", torch.zeros(3, 4, dtype=torch.float64), "gram: got shape"),
        ("gram", torch.zeros(4, 4), "gram: got dtype"),
        ("sketch", torch.zeros(4, 5, dtype=torch.float64), "memory: got shape"),
        ("sketch", torch.zeros(4, dtype=torch.float64), "sketch: got shape"),
        ("valid", torch.ones(4), "mask: got dtype"),
        ("memory", torch.zeros(0, 6, dtype=torch.float64), "memory: got shape"),
        ("memory", torch.zeros(6, 4, dtype=torch.float64).T[:, :0], "memory: got shape"),
        ("memory", torch.zeros(6, dtype=torch.float64), "memory: got shape"),
        ("memory", torch.zeros(6, 3, dtype=torch.float64).T, "memory: got strides"),
        ("counters", torch.zeros(5, dtype=torch.int64), "counters: got shape"),
        ("ridge", 0.0, "ridge: got 0.0"),
        ("ridge", float("inf"), "ridge: got inf"),
    ],
)
def test_refusals(name, value, error):
    arguments = {
        "gram": torch.eye(4, dtype=torch.float64),
        "sketch": torch.zeros(4, 6, dtype=torch.float64),
        "valid": everyone(4),
        "memory": torch.zeros(3, 6, dtype=torch.float64),
        "counters": counters(0),
        "ridge": 0.1,
    }
    with pytest.raises((TypeError, ValueError), match=error):
        cpu.remembered(**{**arguments, name: value})
