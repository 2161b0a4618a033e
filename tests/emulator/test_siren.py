"""kernels/cuda/siren*.cuh on the emulated device, against 50-digit answers and enumeration."""

from __future__ import annotations

import near_opposite
import pytest
import torch
from comparing import assert_relative, float64
from random_grams import EXPONENTS, random_gram
from right_answers import vectors

import oasis
from oasis import reference
from oasis.names import RULES


@pytest.mark.parametrize("case", vectors("siren"), ids=lambda c: c["name"])
@pytest.mark.parametrize("method", ["exact", "pairwise"])
def test_vectors(device, case, method):
    suffix = "" if method == "exact" else "_pairwise"
    grads = float64(case["grads"])
    adjusted, order = device.siren(grads @ grads.T, method)
    assert order.tolist() == case["order" + suffix]
    floor = 1e-3 * max(case["informativeness"])
    assert_relative(adjusted, case["adjusted" + suffix], 1e-10, floor=floor)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("clusters", [0, 3])
def test_against_the_reference(device, method, n, clusters, generator):
    gram = random_gram(n, 12, generator, clusters)
    ridge = 0.01 if method == "residual" else 0.0
    want = reference.siren(gram, method=method, ridge=ridge)
    adjusted, order = device.siren(gram, method, ridge)
    assert_relative(adjusted, want.adjusted, 1e-10, floor=float(gram.diagonal().max()))
    assert order.tolist() == want.order.tolist()


@pytest.mark.parametrize("n", range(1, 21))
@pytest.mark.parametrize("clusters", [0, 4])
def test_exact_at_every_size(device, n, clusters, generator):
    # Against the CPU's own code, which tests/core/test_siren.py holds to the definition.
    gram = random_gram(n, 40, generator, clusters)
    want = oasis.siren(gram, method="exact")
    adjusted, order = device.siren(gram)
    assert_relative(adjusted, want.adjusted, 1e-10, floor=float(gram.diagonal().max()))
    assert order.tolist() == want.order.tolist()


@pytest.mark.parametrize("processors", [1, 2, 3, 200])
def test_exact_however_the_grid_is_cut(device, processors, generator):
    # From most bits of a subset looped over to a block for each of their values.
    gram = random_gram(20, 40, generator, clusters=3)
    device.configure(processors=processors)
    want = oasis.siren(gram, method="exact")
    adjusted, order = device.siren(gram)
    assert_relative(adjusted, want.adjusted, 1e-10, floor=float(gram.diagonal().max()))
    assert order.tolist() == want.order.tolist()


@pytest.mark.parametrize("n", [3, 14, 16])
def test_exact_by_the_grid_where_shared_memory_is_small(device, n, generator):
    gram = random_gram(n, 30, generator, clusters=3)
    whole, order = device.siren(gram)
    device.configure(shared=8 * 1024)
    if n == 3:
        device.configure(shared=4 * 1024)
    spread, same = device.siren(gram)
    assert torch.equal(order, same)
    assert_relative(spread, whole, 1e-12, floor=float(gram.diagonal().max()))


@pytest.mark.parametrize("method", ["pairwise", "residual", "none"])
@pytest.mark.parametrize("n", [31, 32, 33, 100, 140, 257, 300])
def test_rules_at_large_sizes(device, method, n, generator):
    gram = random_gram(n, 40 if method == "residual" else 400, generator)
    want = oasis.siren(gram, method=method, ridge=0.01)
    adjusted, order = device.siren(gram, method, 0.01)
    assert_relative(adjusted, want.adjusted, 1e-9, floor=float(gram.diagonal().max()))
    assert order.tolist() == want.order.tolist()


@pytest.mark.parametrize(
    ("shape", "n"),
    [("clusters", n) for n in (*range(1, 25), 64, 130)]
    + [(shape, n) for shape in ("wide", "low rank", "sum to zero") for n in (5, 16, 23, 40)],
)
def test_mean_field_equals_the_cpu(device, shape, n, generator):
    # The shapes differ in the roots of q, so in how the sum is taken (mean_field.h); a sample in
    # each has no gradient.
    width = {"wide": 300, "clusters": 40, "low rank": max(n // 3, 1), "sum to zero": 90}[shape]
    grads = torch.randn(n, width, generator=generator, dtype=torch.float64)
    if shape == "clusters":
        grads += 3 * torch.randn(4, width, generator=generator).double()[torch.arange(n) % 4]
    if shape == "sum to zero":  # nearly, when all but three short ones are picked
        grads[:-3] -= grads[:-3].mean(0)
        grads[0] *= 1.05
        grads[-3:] *= 0.05
    grads[-1] *= n < 3
    gram = grads @ grads.T
    gram = (gram + gram.T) / 2
    want = oasis.siren(gram, method="mean_field")
    adjusted, order = device.siren(gram, "mean_field")
    assert_relative(adjusted, want.adjusted, 1e-10, floor=float(gram.diagonal().max()))
    assert order.tolist() == want.order.tolist()


def test_mean_field_follows_the_cpu_on_a_gram_that_is_not_symmetric(device, generator):
    gram = random_gram(15, 40, generator)
    gram += 0.05 * torch.rand(15, 15, generator=generator).double().triu(1)
    want = oasis.siren(gram, method="mean_field")
    adjusted, order = device.siren(gram, "mean_field")
    assert_relative(adjusted, want.adjusted, 1e-11, floor=float(gram.max()))
    assert order.tolist() == want.order.tolist()


def test_mean_field_with_its_sums_in_the_workspace(device, generator):
    # 2800 samples take more shared memory than some devices have; few of them are valid.
    n, keep = 2800, [3, 511, 512, 1024, 1025, 2000, 2047, 2048, 2799]
    small, gram = random_gram(9, 30, generator), torch.full((n, n), torch.nan).double()
    gram[torch.tensor(keep)[:, None], torch.tensor(keep)] = small
    valid = torch.zeros(n).bool()
    valid[keep] = True
    device.configure(shared=99 * 1024)
    want = oasis.siren(small, method="mean_field")
    adjusted, order = device.siren(gram, "mean_field", valid=valid)
    assert_relative(adjusted[keep], want.adjusted, 1e-10, floor=float(small.max()))
    assert order[:9].tolist() == [keep[i] for i in want.order] and (order[9:] == -1).all()


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [9, 18])
def test_invalid_samples_are_left_out(device, method, n, generator):
    gram = random_gram(n, 30, generator)
    valid = torch.rand(n, generator=generator) < 0.6
    valid[0], valid[1] = True, False
    keep = valid.nonzero().squeeze(1)
    want, picks = device.siren(gram[keep][:, keep], method, 0.01)
    gram[~valid] = gram[:, ~valid] = torch.nan
    adjusted, order = device.siren(gram, method, 0.01, valid=valid)
    assert_relative(adjusted[keep], want, 1e-12, floor=float(want.max()))
    assert (adjusted[~valid] == 0).all()
    assert order.tolist() == keep[picks].tolist() + [-1] * (n - len(keep))


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [1, 5, 17, 40])
def test_nothing_valid(device, method, n):
    capacity = min(n, 20)
    gram, valid = torch.eye(n).double(), torch.zeros(n).bool()
    adjusted, order = device.siren(gram, method, valid=valid, capacity=capacity)
    assert (adjusted == 0).all() and (order == -1).all()


def test_few_valid_among_many(device, generator):
    n = 70
    gram, valid = random_gram(n, 90, generator), torch.zeros(n).bool()
    valid[[3, 31, 32, 50, 63, 64, 69]] = True
    keep = valid.nonzero().squeeze(1)
    adjusted, order = device.siren(gram, valid=valid, capacity=7)
    want = oasis.siren(gram[keep][:, keep])
    assert_relative(adjusted[keep], want.adjusted, 1e-12, floor=float(gram.max()))
    assert order[:7].tolist() == keep[want.order].tolist() and (order[7:] == -1).all()


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [6, 18])
def test_stops_at_the_floor(device, method, n, generator):
    gram = random_gram(n, 25, generator, clusters=2)
    scores, picks = device.siren(gram, method)
    # Just above the lowest score: that pick is not made.
    floor = scores[picks][1:].min() + 1e-9 * scores.max()
    valid = torch.ones(n).bool()
    want, picks = torch.ops.oasis.siren(gram, valid, floor, method, 0.0)
    adjusted, order = device.siren(gram, method, floor=float(floor))
    assert 0 < int((picks >= 0).sum()) < n, "the floor should cut the batch in two"
    assert torch.equal(order, picks)
    assert_relative(adjusted, want, 1e-10, floor=float(gram.diagonal().max()))


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [2, 3, 6, 17])
def test_ties_and_duplicates(device, method, n):
    gram = torch.full((n, n), 30.859375, dtype=torch.float64)
    adjusted, order = device.siren(gram, method)
    assert order.tolist() == list(range(n)), "ties go to the lowest index"
    if method in ("exact", "residual"):
        # Sums of 2^n alternating terms; 1e-9 of the score is what they leave at n = 17.
        bound = 0.0 if n <= 3 or method == "residual" else 1e-12 if n < 10 else 1e-9
        assert adjusted[1:].abs().max() <= bound * 30.859375


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("n", [9, 17])
def test_scores_scale_wherever_squared_norms_are_finite(device, method, exponent, n, generator):
    gram = random_gram(n, 12, generator, clusters=2)
    want, picks = device.siren(gram, method, 1.0)
    far = torch.tensor(2 * exponent)
    adjusted, order = device.siren(torch.ldexp(gram, far), method, 1.0)
    assert torch.equal(adjusted, torch.ldexp(want, far))
    assert torch.equal(order, picks)


def test_cosines_of_short_gradients_beside_a_long_one(device):
    gram = 1e-200 * float64([[0, 0, 0], [0, 1, 0.5], [0, 0.5, 1]])
    gram[0, 0] = 1.0
    for method, left in (("pairwise", 0.5), ("residual", 0.75)):
        adjusted, order = device.siren(gram, method)
        assert order.tolist() == [0, 1, 2]
        assert_relative(adjusted, float64([1.0, 1e-200, left * 1e-200]), 1e-14)


@pytest.mark.parametrize("shared", [227 * 1024, 4 * 1024], ids=["one block", "grid"])
@pytest.mark.parametrize("strangers", [*near_opposite.STRANGERS, 13])
@pytest.mark.parametrize("k", near_opposite.EXPONENTS)
def test_a_sum_of_nearly_opposite_gradients_counts_down_to_the_bound(device, shared, strangers, k):
    device.configure(shared=shared)
    want_order, want = near_opposite.adjusted(k, strangers)
    adjusted, order = device.siren(near_opposite.gram(k, strangers), "exact")
    assert order.tolist() == want_order
    assert_relative(adjusted[-1], want, 1e-9)


@pytest.mark.parametrize("k", range(18, 25))
def test_residual_of_nearly_opposite_gradients_counts_down_to_rounding(device, k):
    gram = near_opposite.small_third(k)
    adjusted, order = device.siren(gram, "residual")
    assert order.tolist() == [1, 0, 2]
    d2 = 2.0 ** (-2 * k)
    assert_relative(adjusted[0], d2, 1e-3)
    assert_relative(adjusted[2], 0.0 if d2 > 1e-13 else d2 / 4, 1e-3, floor=d2)


@pytest.mark.parametrize("method", RULES)
def test_zeros_and_opposites(device, method):
    grads = float64([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    gram = grads @ grads.T
    want = reference.siren(gram, method=method)
    adjusted, order = device.siren(gram, method)
    assert_relative(adjusted, want.adjusted, 1e-12, floor=9.0)
    if method != "residual":  # the span is exhausted: what is left is rounding
        assert order.tolist() == want.order.tolist()
    adjusted, _ = device.siren(torch.zeros(3, 3).double(), method)
    assert (adjusted == 0).all()


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [13, 18])
def test_same_bits_whatever_the_schedule(device, method, n, generator):
    gram = random_gram(n, 20, generator, clusters=3)
    first = device.siren(gram, method)
    for order in ("backward", "shuffled"):
        device.configure(order=order)
        assert all(
            torch.equal(a, b) for a, b in zip(device.siren(gram, method), first, strict=True)
        )


def test_limits(device):
    with pytest.raises(ValueError, match="30"):
        device.siren(torch.eye(31).double())


def test_threads(tsan, generator):
    calls = [("exact", 1), ("exact", 5), ("exact", 16), ("exact", 17)]
    calls += [("mean_field", 17), ("pairwise", 40)]
    for method, n in calls:
        gram = random_gram(n, 30, generator, clusters=2)
        adjusted, order = tsan.siren(gram, method)
        want = oasis.siren(gram, method=method)
        assert order.tolist() == want.order.tolist()
        assert_relative(adjusted, want.adjusted, 1e-10, floor=float(gram.max()))
    for n in (20, 130):  # the factor in shared memory, and in the workspace
        gram = random_gram(n, 30, generator)
        tsan.siren(gram, "residual", 0.01)
