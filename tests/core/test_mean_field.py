"""Mean-field SIREN (docs/method.md 2.2): the stable sum, and the rule built on it."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from comparing import assert_relative
from random_grams import random_gram

import oasis
from oasis import _core, reference
from oasis.reference.siren import _mean_field

# (square, linear, quadratic) of q(j); the roots of q decide how the sum is taken.
SHAPES = {
    "orthogonal": lambda n: (1.0, 1.0, 0.0),
    "correlated 0.5": lambda n: (1.0, 2.0, 0.5),
    "correlated 0.99": lambda n: (1.0, 2.98, 0.99),
    "nearly a square": lambda n: (1.0, 3.0, 1.0000001),
    "far second root": lambda n: (1.0, 1.1, 1e-6),
    "complex roots": lambda n: (1.0, 1.0, 0.5),
    "roots at +-i": lambda n: (1.0, 1.0, 1.0),
    "roots at +-10i": lambda n: (100.0, 1.0, 1.0),
    "roots at -1/2 +- i/4": lambda n: (0.3125, 2.0, 1.0),
    "small own norm": lambda n: (1e-4, 1.0, 0.3),
    "tiny own norm": lambda n: (1e-12, 1.0, 0.0),
    "zero own norm": lambda n: (0.0, 1.0, 0.1),
    "constant": lambda n: (1.0, 0.0, 0.0),
    "opposed to the rest": lambda n: (1.0, -0.8, 0.9),
    "sum halfway to zero": lambda n: (1.0, 1.0, -0.5 * (1 + n) / max(n * (n - 1), 1)),
    "sum nearly zero": lambda n: (1.0, 1.0, -0.99 * (1 + n) / max(n * (n - 1), 1)),
    "sum below zero": lambda n: (1.0, 1.0, -1.1 * (1 + n) / max(n * (n - 1), 1)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 12, 13, 14, 31, 100, 257, 512])
def test_sum_against_80_digits(shape, n):
    square, linear, quadratic = SHAPES[shape](n)
    for score, mean in ((square, 1.0), (1.0, 0.25)):
        arguments = score, mean, square, linear, quadratic, n
        error = abs(_core.mean_field_sum(*arguments) - reference.mean_field_sum(*arguments))
        assert error <= 1e-12 * largest_term(*arguments), f"{error:.3g}"


def largest_term(score, mean, square, linear, quadratic, n):
    """max |f(j)|: the terms without their binomial coefficients."""
    linear = max(linear, quadratic, 0.0)
    if n > 1:
        quadratic = max(quadratic, -(square / n + linear) / (n - 1))
    largest = 0.0
    for j in range(n + 1):
        q = square + j * (linear + (j - 1) * quadratic)
        if q > 1e-12 * (square**0.5 + j * mean**0.5) ** 2:
            largest = max(largest, (score + j * mean) / ((j + 1) * q**0.5))
    return largest


def test_q_is_the_mean_over_subsets(generator):
    # The closed form in method 2.2 against every subset that holds u.
    gram = random_gram(6, 9, generator)
    others, u = [1, 2, 3, 4, 5], 0
    sub = gram[1:, 1:]
    linear = float(sub.diagonal().mean() + 2 * gram[0, 1:].mean())
    quadratic = float((sub.sum() - sub.diagonal().sum()) / 20)
    for j in range(6):
        subsets = [[u, *s] for s in combinations(others, j)]
        want = sum(float(gram[s][:, s].sum()) for s in subsets) / len(subsets)
        assert_relative(float(gram[0, 0]) + j * linear + j * (j - 1) * quadratic, want, 1e-12)


@pytest.mark.parametrize("n", [24, 33])
@pytest.mark.parametrize("shape", ["wide", "low rank", "clusters", "sum to zero"])
def test_beyond_exact_against_the_reference(n, shape, generator):
    gram = {
        "wide": lambda: random_gram(n, 200, generator),
        "low rank": lambda: random_gram(n, 9, generator),
        "clusters": lambda: random_gram(n, 20, generator, clusters=3),
        "sum to zero": lambda: centred(n, 50, generator),
    }[shape]()
    got = oasis.siren(gram, method="mean_field")
    order = got.order.tolist()
    assert sorted(order) == list(range(n))
    top = float(gram.diagonal().max())
    k = gram.tolist()
    for m in (1, 2, n // 2, n - 1):
        scores = {i: _mean_field(k, i, order[:m], 0.0) for i in order[m:]}
        assert scores[order[m]] >= max(scores.values()) - 1e-10 * top, "not the greedy pick"
        assert_relative(got.adjusted[order[m]], scores[order[m]], 1e-10, floor=top)


def centred(n, p, generator):
    grads = torch.randn(n, p, generator=generator, dtype=torch.float64)
    grads -= grads.mean(0)
    return (grads @ grads.T + (grads @ grads.T).T) / 2


@pytest.mark.parametrize("n", [3, 9, 17])
@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.9, 1.0])
def test_exact_where_all_pairs_are_alike(n, cosine):
    gram = cosine * torch.ones(n, n).double() + (1 - cosine) * torch.eye(n).double()
    got, want = (oasis.siren(gram, method=m) for m in ("mean_field", "exact"))
    assert_relative(got.adjusted, want.adjusted, 1e-11, floor=1.0)


@pytest.mark.parametrize("n", [3, 20])
def test_near_exact_on_a_batch_of_strangers(n, generator):
    # With two picked samples nothing is averaged; beyond, wide gradients differ little.
    gram = random_gram(n, 500, generator)
    got, want = (oasis.siren(gram, method=m) for m in ("mean_field", "exact"))
    error = (got.adjusted - want.adjusted).abs() / gram.diagonal().mean()
    assert error.max() <= (1e-12 if n == 3 else 5e-3)
    if n == 20:  # it is an approximation of the exact rule, not of the raw scores
        assert (gram.diagonal() - want.adjusted).abs().max() > 0.02 * gram.diagonal().mean()


@pytest.mark.parametrize("n", [64, 256])
def test_large_batches_stay_finite_and_repeat(n, generator):
    gram = random_gram(n, 50, generator, clusters=5)
    gram[3, :] = gram[:, 3] = 0.0
    got, again = (oasis.siren(gram, method="mean_field") for _ in range(2))
    assert torch.equal(got.adjusted, again.adjusted) and torch.equal(got.order, again.order)
    assert torch.isfinite(got.adjusted).all() and got.adjusted[3] == 0
    assert got.adjusted[got.order[0]] == gram.diagonal().max()


def test_auto_switches_beyond_20(generator):
    assert oasis.siren(random_gram(20, 30, generator), method="auto").method == "exact"
    assert oasis.siren(random_gram(21, 30, generator), method="auto").method == "mean_field"


def test_stops_at_a_floor(generator):
    gram = random_gram(30, 12, generator)
    whole = oasis.siren(gram, method="mean_field")
    floor = whole.adjusted[whole.order[11]]
    valid = torch.ones(30, dtype=torch.bool)
    adjusted, order = torch.ops.oasis.siren(gram, valid, floor, "mean_field", 0.0)
    made = int((order >= 0).sum())
    assert 0 < made <= 11 and order[:made].tolist() == whole.order[:made].tolist()
    assert torch.equal(adjusted[order[:made]], whole.adjusted[order[:made]])
    left = torch.ones(30, dtype=torch.bool)
    left[order[:made]] = False
    assert torch.equal(adjusted[left], gram.diagonal()[left]), "not picked: the raw score"
