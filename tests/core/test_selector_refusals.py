"""What select and Selector refuse or skip: options, batches, states, non-finite samples."""

from __future__ import annotations

import math

import pytest
import torch
from selector_streams import PRESETS, batches, same, snapshot, unchanged

import oasis
from oasis import operators
from oasis.names import WRONGS
from oasis.operators import candidates


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("preset", PRESETS)
def test_non_finite_samples_raise(bad, preset):
    selector = oasis.Selector(preset=preset)
    for g in batches(3):
        selector.select(g)
    before, g = snapshot(selector), batches(1, seed=8)[0]
    g[2, 3] = g[5, 0] = bad
    with pytest.raises(ValueError, match=r"2, 5.*skip"):
        selector.select(g)
    assert unchanged(selector, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("preset", PRESETS)
def test_non_finite_samples_skipped(bad, preset):
    selector, other = (oasis.Selector(0.5, preset=preset, nonfinite="skip") for _ in range(2))
    for g in batches(3):
        selector.select(g)
        other.select(g)
    g = batches(1, seed=8)[0]
    spoiled = g.clone()
    spoiled[2, 3] = spoiled[5, 0] = bad
    got = selector.select(spoiled)
    want = other.select(g, valid=torch.tensor([i not in (2, 5) for i in range(8)]))
    assert got.skipped.nonzero().flatten().tolist() == [2, 5]
    assert same(got, want) and not got.mask[[2, 5]].any()
    assert torch.equal(selector.statistics, other.statistics)
    assert torch.isfinite(selector.statistics).all()


def test_all_samples_non_finite():
    g = torch.full((3, 5), math.nan)
    selector = oasis.Selector(nonfinite="skip")
    before = selector.statistics.clone()
    got = selector.select(g)
    assert got.skipped.all() and not got.mask.any()
    assert torch.equal(selector.statistics, before)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ratio": 0.0}, ValueError, ["ratio", "0.0", "(0, 1]"]),
        ({"ratio": 1.01}, ValueError, ["ratio", "1.01"]),
        ({"ratio": -1}, ValueError, ["ratio", "-1"]),
        ({"ratio": math.nan}, ValueError, ["ratio", "nan"]),
        ({"ratio": "half"}, TypeError, ["ratio", "'half'"]),
        ({"preset": "papers"}, ValueError, ["preset", "papers", "paper", "released"]),
        ({"seed": -1}, ValueError, ["seed", "-1"]),
        ({"seed": 1.5}, (TypeError, ValueError), ["seed", "1.5"]),
        ({"nonfinite": "ignore"}, ValueError, ["nonfinite", "ignore", "raise", "skip"]),
        ({"beta": 0.0}, ValueError, ["beta", "0.0"]),
        ({"beta": 1.1}, ValueError, ["beta", "1.1"]),
        ({"scale": "std"}, ValueError, ["scale", "std", "sample", "within"]),
        ({"draw": "coin"}, ValueError, ["draw", "coin", "bernoulli"]),
        ({"siren": "exakt"}, ValueError, ["exakt", "residual"]),
        ({"ridge": -0.5}, ValueError, ["ridge", "-0.5"]),
        ({"warmup": -1}, ValueError, ["warmup", "-1"]),
        ({"recursion": "code"}, ValueError, ["recursion", "code", "equations", "released"]),
        ({"bета": 0.5}, TypeError, ["bета", "beta"]),
    ],
    ids=lambda x: next(iter(x.items())).__repr__() if isinstance(x, dict) else None,
)
def test_bad_options(options, error, words):
    with pytest.raises(error) as caught:
        oasis.Selector(**options)
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, TypeError, ["grads", "gram"]),
        ({"grads": torch.ones(2, 3), "gram": torch.eye(2)}, TypeError, ["grads", "gram"]),
        ({"grads": torch.ones(0, 3)}, ValueError, ["grads", "0"]),
        ({"grads": torch.ones(2, 3).long()}, TypeError, ["grads", "int64"]),
        ({"grads": [torch.ones(2, 3), torch.ones(3, 3)]}, ValueError, ["grads", "2", "3"]),
        ({"gram": torch.ones(2, 3)}, ValueError, ["gram", "2", "3"]),
        ({"gram": torch.ones(0, 0)}, ValueError, ["gram", "0"]),
        ({"gram": [[1.0]]}, TypeError, ["gram", "list"]),
        ({"gram": -torch.eye(2)}, ValueError, ["gram", "negative"]),
        ({"gram": torch.tensor([[1.0, math.nan], [math.nan, 1.0]])}, ValueError, ["gram"]),
        ({"gram": torch.eye(2, device="meta")}, (TypeError, ValueError), ["gram", "meta"]),
        ({"gram": torch.eye(2), "valid": torch.ones(3).bool()}, ValueError, ["valid", "2"]),
        ({"gram": torch.eye(2), "valid": [True, True]}, (TypeError, ValueError), ["valid"]),
        ({"gram": torch.eye(2), "valid": torch.ones(2)}, (TypeError, ValueError), ["valid"]),
        ({"gram": torch.eye(40)}, ValueError, ["exact", "40"]),
    ],
    ids=lambda x: None,
)
def test_bad_batches_leave_the_state_alone(arguments, error, words):
    selector = oasis.Selector(siren="exact")
    for g in batches(3):
        selector.select(g)
    before = snapshot(selector)
    with pytest.raises(error) as caught:
        selector.select(**arguments)
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"
    assert unchanged(selector, before)


def test_select_rejects_what_is_no_selector():
    with pytest.raises(TypeError, match="selector.*Selector"):
        oasis.select(torch.ones(2, 3), selector=0.25)
    with pytest.raises(ValueError, match="ratio"):
        oasis.select(torch.ones(2, 3), ratio=2.0)


def test_a_state_of_other_settings_is_refused():
    saved = oasis.Selector(0.25, preset="paper").state_dict()
    assert all(isinstance(value, torch.Tensor) for value in saved.values())
    for other in (oasis.Selector(0.5, preset="paper"), oasis.Selector(0.25, beta=0.5)):
        before = snapshot(other)
        with pytest.raises(ValueError, match="ratio=0.25|saved with"):
            other.load_state_dict(saved)
        assert unchanged(other, before)


def test_scores_that_would_overflow_the_statistics_are_skipped():
    selector = oasis.Selector(0.25, nonfinite="skip")
    grads = torch.randn(16, 20, dtype=torch.float64)
    grads[3] *= 1e100
    selection = selector.select(grads)
    assert selection.skipped.nonzero().flatten().tolist() == [3]
    assert selector.statistics.isfinite().all()


@pytest.mark.parametrize(
    "gram", [torch.tensor([[1.0, 5.0], [5.0, 1.0]]), torch.tensor([[1.0, 0.5], [-0.5, 1.0]])]
)
def test_what_is_no_gram_matrix_is_refused(gram):
    with pytest.raises(ValueError, match=r"gram: got .* at \[0, 1\]"):
        oasis.siren(gram)


@pytest.mark.parametrize("method", ["ghost", "instantiate", "sketch", "folded"])
@pytest.mark.parametrize("lead", [373.0, 400.0, 740.0, 750.0])
def test_a_token_too_sure_to_teach_anything_is_left_out(lead, method, monkeypatch):
    """Its squared norm underflows before its products with others do, which then exceed it."""
    head = torch.tensor([[lead, 0.0], [1.0, 1.0]]), torch.eye(4, 2), torch.tensor([0, 2])
    scores = oasis.head_gram(*head, torch.tensor([0, 1]), num_samples=2, method=method)
    selection = oasis.Selector(1.0, nonfinite="raise").select(gram=scores)
    assert selection.mask.tolist() == [bool(scores.gram[0, 0] > 0), True]
    assert not selection.skipped.any()
    oasis.siren(scores.gram)
    monkeypatch.setattr(candidates.launch, "BUILT", False)  # plain torch, on CPU tensors
    plain = candidates.usable_on_gpu(scores.gram, None, None, None, "gram", True)
    assert plain[-1] == WRONGS["nothing"]


def test_what_is_left_out_may_be_anything():
    gram, scores = torch.eye(4).double(), torch.ones(4).double()
    gram[3, 3], gram[0, 3], gram[3, 1], scores[3] = -1, 7, -9, -1
    valid = torch.tensor([True, True, True, False])
    assert oasis.siren(gram, valid=valid).order.tolist() == [0, 1, 2]
    for given in (None, scores):
        found = oasis.Selector(1.0).select(gram=gram, valid=valid, scores=given)
        assert torch.equal(found.mask, valid)


SOMEWHERE = "gram: non-finite entries between samples with finite norms"


@pytest.mark.parametrize(
    ("name", "at", "value", "here", "later"),
    [
        (
            "negative",
            (3, 3),
            -1.0,
            "gram: negative diagonal -1 at 3, expected squared norms",
            "gram: negative diagonal, expected squared norms",
        ),
        (
            "products",
            (2, 5),
            50.0,
            "gram: got 50 at [2, 5] and 0 at [5, 2] between squared norms 3 and 6; expected inner "
            "products: symmetric, and at most the product of the norms",
            "gram: expected inner products: symmetric, and at most the product of the norms",
        ),
        (
            "skipped",
            (6, 6),
            1e151,
            "gram: the gradients of samples [6] are not finite (or exceed 1e+150); use "
            "nonfinite='skip' to leave such samples out",
            "gram: gradients or scores of some samples are not finite (or exceed 1e+150); use "
            "nonfinite='skip' to leave such samples out",
        ),
        ("entries", (2, 5), math.nan, SOMEWHERE, SOMEWHERE),
        (
            "score",
            4,
            -2.0,
            "scores: got -2 at 4, expected numbers >= 0",
            "scores: expected numbers >= 0",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once_or_by_its_code(name, at, value, here, later, monkeypatch):
    monkeypatch.setattr(candidates.launch, "BUILT", False)  # plain torch, on CPU tensors
    gram = torch.arange(1, 9).double().diag()
    scores = gram.diagonal().clone() if name == "score" else None
    (gram if scores is None else scores)[at] = value
    with pytest.raises(ValueError) as caught:
        operators.usable(gram, None, scores, None, "gram", True)
    assert str(caught.value) == here
    *_, code = candidates.usable_on_gpu(gram, None, scores, None, "gram", True)
    assert code == WRONGS[name] > 0
    assert str(candidates.deferred_error(int(code), "gram")) == later
