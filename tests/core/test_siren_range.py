"""Every redundancy rule where squared norms leave the middle of float64, and where sums vanish."""

from __future__ import annotations

import near_opposite
import pytest
import torch
from comparing import assert_relative, float64
from random_grams import EXPONENTS, random_gram

import oasis
from oasis import reference
from oasis.names import RULES


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_scores_scale_with_the_gradients_wherever_their_squares_are_finite(
    method, exponent, ridge, generator
):
    gram = random_gram(9, 12, generator, clusters=2)
    far = torch.ldexp(gram, torch.tensor(2 * exponent))
    assert torch.equal(torch.ldexp(far, torch.tensor(-2 * exponent)), gram), "no digit is lost"
    got, want = (oasis.siren(k, method=method, ridge=ridge) for k in (far, gram))
    assert torch.equal(got.adjusted, torch.ldexp(want.adjusted, torch.tensor(2 * exponent)))
    assert torch.equal(got.order, want.order)
    if method != "residual" or ridge:  # without a ridge the last scores are rounding
        assert not torch.equal(want.adjusted, gram.diagonal()) or method == "none"


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_reference_scales_too(method, exponent, generator):
    gram = random_gram(7, 12, generator, clusters=2)
    far = torch.ldexp(gram, torch.tensor(2 * exponent))
    got, want = (reference.siren(k, method=method, ridge=0.1) for k in (far, gram))
    assert torch.equal(got.adjusted, torch.ldexp(want.adjusted, torch.tensor(2 * exponent)))
    assert torch.equal(got.order, want.order)


@pytest.mark.parametrize("run", [oasis.siren, reference.siren], ids=["compiled", "reference"])
def test_cosines_of_short_gradients_beside_a_long_one(run):
    # K_ii K_jj = 1e-400 of the two short ones is no float64; their cosine is 1/2.
    gram = 1e-200 * float64([[0, 0, 0], [0, 1, 0.5], [0, 0.5, 1]])
    gram[0, 0] = 1.0
    for method in ("pairwise", "residual"):
        got = run(gram, method=method)
        assert got.order.tolist() == [0, 1, 2]
        left = 0.5 if method == "pairwise" else 0.75
        assert_relative(got.adjusted, float64([1.0, 1e-200, left * 1e-200]), 1e-14)


@pytest.mark.parametrize(
    ("run", "strangers"),
    [(oasis.siren, s) for s in near_opposite.STRANGERS] + [(reference.siren, s) for s in (0, 4)],
    ids=lambda x: getattr(x, "__module__", x),
)
@pytest.mark.parametrize("k", near_opposite.EXPONENTS)
def test_a_sum_of_nearly_opposite_gradients_counts_down_to_the_bound(run, k, strangers):
    order, want = near_opposite.adjusted(k, strangers)
    got = run(near_opposite.gram(k, strangers), method="exact")
    assert got.order.tolist() == order
    assert_relative(got.adjusted[-1], want, 1e-9)


@pytest.mark.parametrize("k", range(18, 25))
def test_residual_of_nearly_opposite_gradients_counts_down_to_rounding(k):
    # The second pick leaves d^2 of the third's squared norm outside the span: a direction as long
    # as that exceeds 1e-13, rounding beyond.
    gram = near_opposite.small_third(k)
    got = oasis.siren(gram, method="residual")
    assert got.order.tolist() == [1, 0, 2]
    d2 = 2.0 ** (-2 * k)
    spans = d2 > 1e-13
    assert_relative(got.adjusted[0], d2, 1e-3)
    assert_relative(got.adjusted[2], 0.0 if spans else d2 / 4, 1e-3, floor=d2)
