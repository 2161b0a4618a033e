"""Sketches of given gradients: `torch.ops.oasis.grad_sketch`."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from oasis import operators, reference

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TESTS = ("test_schema", "test_faketensor", "test_autograd_registration")


def assert_sketch(grads, dim, seed=3):
    got, want = operators.grad_sketch(grads, dim, seed), reference.grad_sketch(grads, dim, seed)
    assert got.shape == want.shape and got.dtype == torch.float64
    assert (got - want).abs().max() <= 1e-13 * want.abs().max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 511, 512, 513, 1024, 1500])
def test_beside_the_length_of_a_run(dtype, count, generator):
    assert_sketch([torch.randn(3, count, generator=generator).to(dtype)], 512)


@pytest.mark.parametrize("dim", [1, 2, 7, 64, 100])
def test_any_dimension(dim, generator):
    assert_sketch([torch.randn(4, 331, generator=generator)], dim)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_layout(dtype, generator):
    whole = torch.randn(40, 6, 9, 5, generator=generator).to(dtype)
    layouts = [
        whole.transpose(0, 2),
        whole[::3, :, ::2],
        whole.permute(3, 2, 1, 0),
        whole[:1].expand(4, 6, 9, 5),
        whole[5:].flip(2),
    ]
    for grads in layouts:
        assert_sketch([grads], 100)
        same = operators.grad_sketch([grads.contiguous()], 100, 3)
        assert torch.equal(operators.grad_sketch([grads], 100, 3), same)


@pytest.mark.parametrize("dim", [16, 100, 4000])
def test_parameters_follow_one_another(dim, generator):
    parts = [(3, 7), (3,), (3, 5, 20), (3, 64), (3, 2, 2, 301)]
    grads = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in parts]
    assert_sketch(grads, dim)
    flat = torch.cat([g.reshape(3, -1) for g in grads], 1)
    whole = operators.grad_sketch([flat], dim, 3)
    assert (operators.grad_sketch(grads, dim, 3) - whole).abs().max() <= 1e-13 * whole.abs().max()


def test_few_numbers_are_taken_as_they_are(generator):
    grads = torch.randn(3, 20, generator=generator)
    got = operators.grad_sketch([grads, grads[:, :5]], 25, 1)
    assert torch.equal(got, torch.cat([grads, grads[:, :5]], 1).double())
    padded = operators.grad_sketch([grads], 512, 1)
    assert torch.equal(padded[:, :20], grads.double()) and (padded[:, 20:] == 0).all()


def test_a_sample_alone_has_the_same_sketch(generator):
    # Or what is remembered of one batch could not be compared with another.
    grads = torch.randn(9, 3000, generator=generator)
    whole = operators.grad_sketch([grads], 512, 0)
    for i in range(9):
        assert torch.equal(operators.grad_sketch([grads[i : i + 1]], 512, 0)[0], whole[i])


@pytest.mark.parametrize("kind", ["normal", "equal", "sparse", "strided"])
def test_inner_products_are_estimated_without_bias(kind, generator):
    count, dim, seeds = 5000, 512, 400
    grads = torch.randn(2, count, generator=generator, dtype=torch.float64)
    grads[1] += grads[0]
    if kind == "equal":
        grads = torch.ones(2, count, dtype=torch.float64)
        grads[1, ::2] = -0.25
    elif kind == "sparse":
        grads *= torch.rand(count, generator=generator) < 0.01
    elif kind == "strided":  # numbers that lie a run apart
        grads *= torch.arange(count) % dim < 2
    grads /= grads.norm(dim=1, keepdim=True)
    exact = grads @ grads.T
    rows = torch.stack([operators.grad_sketch([grads], dim, seed) for seed in range(seeds)])
    errors = rows @ rows.transpose(1, 2) - exact
    deviation = errors.square().mean(0).sqrt()
    assert (deviation <= 1.2 * (2 / dim) ** 0.5).all()
    assert (errors.mean(0).abs() <= 4 * deviation / seeds**0.5 + 1e-12).all()


def test_float32s_range_is_no_limit(generator):
    grads = torch.randn(2, 3000, generator=generator)
    for factor in (1e-40, 1e37):
        scaled = grads * factor
        got = operators.grad_sketch([scaled], 512, 0)
        want = operators.grad_sketch([scaled.double()], 512, 0)
        assert torch.equal(got, want) and got.isfinite().all() and (got != 0).any()


def test_a_broken_sample_spoils_no_other(generator):
    grads = torch.randn(3, 2000, generator=generator)
    clean = operators.grad_sketch([grads], 512, 0)
    grads[1, 700] = torch.nan
    got = operators.grad_sketch([grads], 512, 0)
    assert torch.equal(got[[0, 2]], clean[[0, 2]]) and got[1].isnan().any()


def test_seeds_differ(generator):
    grads = torch.randn(1, 2000, generator=generator)
    rows = [operators.grad_sketch([grads], 64, seed) for seed in (0, 1, 2, 2**62)]
    assert len({tuple(row[0].tolist()) for row in rows}) == 4


def test_the_bits_are_known():
    # SplitMix64 from seed 1234567, of its authors' own listing.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [reference.split_mix(1234567, i) for i in range(3)] == known


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_torch_sees_it(dtype, generator):
    grads = torch.randn(3, 40, generator=generator).to(dtype)
    for dim in (16, 60):
        arguments = ([grads, grads[:, :7]], dim, 5)
        opcheck(torch.ops.oasis.grad_sketch.default, arguments, test_utils=TESTS)


def test_refusals():
    grads = torch.ones(2, 3)
    for arguments, error in (
        (([grads], 0, 0), "dim: got 0"),
        (([grads], 2**31, 0), "dim: got 2147483648"),
        (([grads], 8, -1), "seed: got -1"),
        (([grads.int()], 8, 0), r"grads\[0\]: got dtype"),
        (([grads, grads[:1]], 8, 0), r"grads\[1\]: got 1 samples"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            operators.grad_sketch(*arguments)
