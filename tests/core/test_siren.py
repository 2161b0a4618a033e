"""SIREN on a Gram matrix: every rule against 50-digit answers and literal enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from comparing import assert_relative, float64
from hypothesis import given
from hypothesis import strategies as st
from random_grams import random_gram
from right_answers import vectors

import oasis
from oasis import reference
from oasis.names import RULES


def scores_given(gram: np.ndarray, picked: list[int]) -> np.ndarray:
    """A_i(H) for every i, by the equation, over all subsets of ``picked`` at once."""
    h = len(picked)
    member = ((np.arange(1, 2**h)[:, None] >> np.arange(h)) & 1).astype(float)
    inner = gram[np.ix_(picked, picked)]
    square = ((member @ inner) * member).sum(1)
    bound = (member @ np.sqrt(np.diag(inner))) ** 2
    size = member.sum(1)
    inverse = np.where(square > 1e-12 * bound, 1 / np.sqrt(np.maximum(square, 1e-300)), 0.0)
    term = (-1.0) ** size * inverse * (member @ np.diag(inner)) / size
    norm = np.sqrt(np.diag(gram))
    overlap = gram[:, picked] @ (member.T @ term)
    return np.diag(gram) + np.divide(overlap, norm, out=np.zeros_like(norm), where=norm > 0)


@pytest.mark.parametrize("case", vectors("siren"), ids=lambda c: c["name"])
@pytest.mark.parametrize("method", ["exact", "pairwise"])
def test_vectors(case, method):
    suffix = "" if method == "exact" else "_pairwise"
    gram = oasis.grad_gram(float64(case["grads"]))
    got = oasis.siren(gram, method=method)
    assert got.method == method
    assert got.adjusted.dtype == torch.float64 and got.order.dtype == torch.int64
    assert got.order.tolist() == case["order" + suffix]
    # A score that is zero by cancellation is held to 1e-13 of the batch's largest.
    floor = 1e-3 * max(case["informativeness"])
    assert_relative(got.adjusted, case["adjusted" + suffix], 1e-10, floor=floor)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("shape", ["wide", "low rank", "clusters"])
def test_against_the_reference(method, n, shape, generator):
    gram = {
        "wide": lambda: random_gram(n, 40, generator),
        "low rank": lambda: random_gram(n, max(2, n // 2), generator),
        "clusters": lambda: random_gram(n, 12, generator, clusters=3),
    }[shape]()
    want = reference.siren(gram, method=method)
    got = oasis.siren(gram, method=method)
    top = float(gram.diagonal().max())
    assert_relative(got.adjusted, want.adjusted, 1e-10, floor=top)
    # Once the span is exhausted every residual is rounding, and the order among them moot.
    clear = int((want.adjusted > 1e-9 * top).sum()) if method == "residual" else n
    assert got.order[:clear].tolist() == want.order[:clear].tolist()
    assert sorted(got.order.tolist()) == list(range(n))


@pytest.mark.parametrize("n", [12, 16, 17])
@pytest.mark.parametrize("clusters", [0, 3])
def test_exact_at_the_sizes_of_real_batches(n, clusters, generator):
    gram = random_gram(n, 64, generator, clusters)
    got = oasis.siren(gram, method="exact")
    order, picked = got.order.tolist(), []
    top = float(gram.diagonal().max())
    for i in order:
        scores = scores_given(gram.numpy(), picked)
        rest = [j for j in range(n) if j not in picked]
        assert scores[i] >= scores[rest].max() - 1e-10 * top, "not the greedy pick"
        assert_relative(got.adjusted[i], scores[i], 1e-10, floor=top)
        picked.append(i)
    assert sorted(order) == list(range(n))


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1, 2.0])
def test_residual_with_ridge(ridge, generator):
    gram = random_gram(9, 5, generator, clusters=2)
    got = oasis.siren(gram, method="residual", ridge=ridge)
    want = reference.siren(gram, method="residual", ridge=ridge)
    assert_relative(got.adjusted, want.adjusted, 1e-10, floor=float(gram.diagonal().max()))
    assert (got.adjusted >= 0).all()


def test_residual_falls_and_ignores_strangers(generator):
    gram = random_gram(30, 80, generator, clusters=4)
    got = oasis.siren(gram, method="residual")
    in_order = got.adjusted[got.order]
    assert (in_order[1:] <= in_order[:-1]).all()
    assert (got.adjusted <= gram.diagonal() * (1 + 1e-12)).all()
    # Method 2.3: a twin stays redundant however many orthogonal strangers join.
    grads = torch.eye(8, dtype=torch.float64)
    grads[1] = 0.9 * grads[0] + (1 - 0.9**2) ** 0.5 * grads[1]
    adjusted = oasis.siren(grads @ grads.T, method="residual").adjusted
    assert_relative(adjusted.min(), 1 - 0.9**2, 1e-12)


def test_residual_at_large_n(generator):
    gram = random_gram(300, 40, generator)
    got = oasis.siren(gram, method="residual")
    top = float(gram.diagonal().max())
    assert (got.adjusted > 1e-9 * top).sum() == 40
    assert sorted(got.order.tolist()) == list(range(300))


@pytest.mark.parametrize("method", RULES)
def test_duplicates(method):
    for n in (2, 3, 6):
        gram = torch.full((n, n), 30.859375, dtype=torch.float64)
        got = oasis.siren(gram, method=method)
        assert got.order.tolist() == list(range(n)), "ties go to the lowest index"
        assert got.adjusted[0] == gram[0, 0]
        if method in ("exact", "residual"):
            bound = 0.0 if n <= 3 and method == "exact" else 1e-12 * 30.859375
            assert got.adjusted[1:].abs().max() <= bound


@pytest.mark.parametrize("method", RULES)
def test_orthogonal_gradients_keep_their_score(method):
    score = float64([1.0, 4.0, 9.0, 16.0, 25.0, 4.0])
    got = oasis.siren(torch.diag(score), method=method)
    assert torch.equal(got.adjusted, score)
    assert got.order.tolist() == [4, 3, 2, 1, 5, 0]


@pytest.mark.parametrize("method", RULES)
def test_zero_gradients(method, generator):
    grads = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    grads[2] = 0
    gram = grads @ grads.T
    got = oasis.siren(gram, method=method)
    assert torch.isfinite(got.adjusted).all() and got.adjusted[2] == 0
    others = [0, 1, 3, 4]
    without = oasis.siren(gram[others][:, others], method=method)
    assert_relative(got.adjusted[others], without.adjusted, 1e-12)
    assert (oasis.siren(torch.zeros(3, 3).double(), method=method).adjusted == 0).all()


@pytest.mark.parametrize("method", RULES)
def test_opposites_cancel_to_zero(method):
    # mean of {g, -g} is the zero vector: its cosine with anything is 0, not NaN.
    grads = float64([[3.0, 0.0], [-3.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    gram = grads @ grads.T
    got = oasis.siren(gram, method=method)
    assert_relative(got.adjusted, reference.siren(gram, method=method).adjusted, 1e-12, floor=9.0)


@pytest.mark.parametrize("method", RULES)
def test_valid_leaves_samples_out(method, generator):
    gram = random_gram(8, 10, generator)
    keep = [0, 2, 3, 5, 7]
    valid = torch.zeros(8, dtype=torch.bool)
    valid[keep] = True
    gram[1, :] = gram[:, 1] = float("nan")
    got = oasis.siren(gram, method=method, valid=valid, ridge=0.01)
    want = oasis.siren(gram[keep][:, keep], method=method, ridge=0.01)
    assert_relative(got.adjusted[keep], want.adjusted, 1e-14)
    assert (got.adjusted[~valid] == 0).all()
    assert got.order.tolist() == [keep[i] for i in want.order.tolist()]


@pytest.mark.parametrize("method", RULES)
def test_nothing_valid(method):
    got = oasis.siren(torch.eye(3).double(), method=method, valid=torch.zeros(3).bool())
    assert (got.adjusted == 0).all() and got.order.numel() == 0


@pytest.mark.parametrize("n", [1, 16, 17, 64])
def test_auto_names_what_it_used(n, generator):
    gram = random_gram(n, 20, generator)
    got = oasis.siren(gram, method="auto")
    assert got.method != "auto"
    again = oasis.siren(gram, method=got.method)
    assert torch.equal(got.adjusted, again.adjusted) and torch.equal(got.order, again.order)


@given(n=st.integers(1, 9), seed=st.integers(0, 2**31), method=st.sampled_from(RULES))
def test_permuting_samples_permutes_the_result(n, seed, method):
    g = torch.Generator().manual_seed(seed)
    gram = random_gram(n, 12, g)
    move = torch.randperm(n, generator=g)
    got = oasis.siren(gram[move][:, move], method=method)
    want = oasis.siren(gram, method=method)
    assert_relative(got.adjusted, want.adjusted[move], 1e-9, floor=float(gram.diagonal().max()))
    assert move[got.order].tolist() == want.order.tolist()


@given(
    n=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-40, 40),
    method=st.sampled_from(RULES),
)
def test_scaling_the_gram_scales_the_scores(n, seed, exponent, method):
    gram = random_gram(n, 12, torch.Generator().manual_seed(seed))
    got = oasis.siren(gram * 4.0**exponent, method=method)
    want = oasis.siren(gram, method=method)
    assert torch.equal(got.adjusted, want.adjusted * 4.0**exponent)
    assert torch.equal(got.order, want.order)


@pytest.mark.parametrize("method", RULES)
def test_repeats_bit_for_bit_and_reads_any_layout(method, generator):
    gram = random_gram(13, 20, generator, clusters=3)
    first = oasis.siren(gram, method=method)
    big = torch.zeros(26, 39, dtype=torch.float64)
    big[::2, 1::3] = gram
    for same in (gram, gram.T, big[::2, 1::3], gram.clone().requires_grad_()):
        before = same.detach().clone()
        again = oasis.siren(same, method=method)
        assert torch.equal(again.adjusted, first.adjusted)
        assert torch.equal(again.order, first.order)
        assert torch.equal(same.detach(), before)


def test_scores_are_float64_from_a_float32_gram(generator):
    gram = random_gram(6, 9, generator).float()
    got = oasis.siren(gram)
    assert got.adjusted.dtype == torch.float64
    assert torch.equal(got.adjusted, oasis.siren(gram.double()).adjusted)


@pytest.mark.parametrize(
    ("gram", "options", "error", "words"),
    [
        (torch.zeros(2, 3), {}, ValueError, ["gram", "2", "3"]),
        (torch.zeros(3), {}, ValueError, ["gram", "3"]),
        (torch.zeros(0, 0), {}, ValueError, ["gram", "0"]),
        (torch.zeros(2, 2, dtype=torch.int64), {}, TypeError, ["gram", "int64"]),
        ([[1.0]], {}, TypeError, ["gram", "list"]),
        (torch.eye(2), {"method": "exakt"}, ValueError, ["method", "exakt", "exact", "residual"]),
        (torch.eye(2), {"ridge": -1.0}, ValueError, ["ridge", "-1"]),
        (torch.eye(2), {"ridge": float("nan")}, ValueError, ["ridge", "nan"]),
        (torch.eye(2), {"valid": torch.ones(3).bool()}, ValueError, ["valid", "2"]),
        (torch.eye(2), {"valid": torch.ones(2)}, (TypeError, ValueError), ["valid", "bool"]),
        (float64([[1.0, float("nan")], [0.0, 1.0]]), {}, ValueError, ["gram", "0"]),
        (torch.eye(100), {"method": "exact"}, ValueError, ["exact", "100", "residual"]),
    ],
    ids=lambda x: None,
)
def test_bad_input(gram, options, error, words):
    with pytest.raises(error) as caught:
        oasis.siren(gram, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"
