"""Vocabulary-parallel head_gram: parts over uneven ranges merge to the whole."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import METRICS, assert_same, confident, parts, plain_gram, problem
from right_answers import head_arguments, vectors

import oasis
from oasis import reference


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_vectors(case, dtype, rtol):
    arguments = head_arguments(case, dtype)
    v = len(arguments["weight"])
    got = oasis.merge(parts(arguments, *sorted({max(1, v // 5), max(1, v // 2)} - {v})))
    want = torch.tensor(case["gram"], dtype=torch.float64)
    assert_relative(got.gram.diagonal(), want.diagonal(), rtol)
    assert cosine_scaled(got.gram - want, want).max() <= rtol
    whole = oasis.head_gram(**arguments, method="ghost")
    assert_same(got, whole, 1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("cuts", [(1, 2), (7, 9000), (3000, 8999)])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_three_uneven_ranges(cuts, softcap, reduction, generator):
    arguments = problem(generator, lengths=[3, 0, 5, 2], d=6, v=9001, sharpness=3.0, shuffle=True)
    arguments["labels"][:4] = torch.tensor([0, cuts[0], cuts[1] - 1, 9000])
    arguments |= {"softcap": softcap, "scale": 1.5, "reduction": reduction}
    arguments["bias"] = torch.randn(9001, generator=generator, dtype=torch.float64)
    got = oasis.merge(reversed(parts(arguments, *cuts)))
    assert_same(got, reference.head_gram(**arguments), 1e-10)
    assert got.reduction == reduction and got.method == "ghost"


def test_a_label_a_hundred_below_a_range_counts(generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=400, masked=0)
    arguments["labels"][:3] = torch.tensor([30, 100, 0])
    got = oasis.merge(parts(arguments, 100, 130, 200))
    assert_same(got, oasis.head_gram(**arguments, method="ghost"), 1e-12)


@pytest.mark.parametrize("slope", [60.0, -60.0])
def test_peaks_far_apart(slope, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=6, v=9001)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 9001)
    arguments["hidden"][:, 0] = 20.0  # exp of the difference is zero
    got = oasis.merge(parts(arguments, 100, 8500))
    assert_same(got, reference.head_gram(**arguments), 1e-9)


@pytest.mark.parametrize("margin", [15.0, 40.0])
def test_confident_tokens_keep_relative_precision(margin, generator):
    arguments = confident(
        generator, lengths=[3, 2, 4], d=16, v=9001, margin=margin, dtype=torch.float32
    )
    got = oasis.merge(parts(arguments, 2000, 2100))
    whole = oasis.head_gram(**arguments, method="ghost")
    # Another blocking of the same float32 sums.
    assert_relative(got.gram.diagonal(), whole.gram.diagonal(), 1e-5)
    assert_same(got, whole, 1e-5)


def test_float32_is_no_worse_than_autograd(generator):
    arguments = problem(generator, lengths=[4, 1, 7, 3], d=48, v=5000, dtype=torch.float32)
    truth = reference.head_gram(**arguments).gram
    got = oasis.merge(parts(arguments, 11, 3000)).gram
    theirs = cosine_scaled(plain_gram(arguments) - truth, truth).max()
    assert cosine_scaled(got - truth, truth).max() <= theirs + 1e-6


def test_a_part_that_is_switched_off(generator):
    # Padding rows with a bias of -inf: their part has no peak at all.
    arguments = problem(generator, lengths=[3, 4], d=6, v=300)
    arguments["labels"] = arguments["labels"].where(arguments["labels"] < 290, -100)
    arguments["bias"] = torch.zeros(300, dtype=torch.float64)
    arguments["bias"][290:] = -torch.inf
    got = oasis.merge(parts(arguments, 100, 290))
    assert_same(got, oasis.head_gram(**arguments), 1e-12)


def test_nothing_labelled_and_a_single_part(generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=30)
    (whole,) = parts(arguments)
    assert_same(oasis.merge([whole]), oasis.head_gram(**arguments), 1e-14)
    arguments["labels"][:] = -100
    got = oasis.merge(parts(arguments, 10))
    for name in ("gram", *METRICS, "correct", "tokens"):
        assert (getattr(got, name) == 0).all()
    assert got.gram.shape == (2, 2)


def test_bad_parts(generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=30, masked=0)
    a, b, c = parts(arguments, 10, 20)
    other = parts(arguments | {"labels": arguments["labels"].roll(1)}, 10, 20)
    scaled = parts(arguments | {"scale": 2.0}, 10, 20)
    beyond = parts(arguments | {"labels": arguments["labels"].clone().fill_(30)}, 10, 20)
    cases = [
        ([], TypeError, ["partials", "none"]),
        ([oasis.head_gram(**arguments)], TypeError, ["partials", "HeadGram"]),
        ([a, c], ValueError, ["(0, 10)", "(20, 30)", "gap"]),
        ([a, a, b, c], ValueError, ["overlap"]),
        ([b, c], ValueError, ["(10, 20)"]),
        ([a, other[1], c], ValueError, ["labels"]),
        ([a, scaled[1], c], ValueError, ["2.0"]),
        (beyond, ValueError, ["label 30", "end 30"]),
    ]
    for given, error, words in cases:
        with pytest.raises(error) as caught:
            oasis.merge(given)
        for word in words:
            assert word in str(caught.value), f"{word!r} missing in: {caught.value}"
    with pytest.raises(ValueError, match="labels"):
        negative = {"labels": arguments["labels"].clone().fill_(-1)}
        parts(arguments | negative, 10)
