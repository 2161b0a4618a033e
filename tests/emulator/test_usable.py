"""kernels/cuda/usable.cuh on the emulated device, against the CPU and plain torch."""

from __future__ import annotations

import pytest
import torch
from random_grams import random_gram

from oasis import operators
from oasis.names import WRONGS
from oasis.operators import candidates
from oasis.operators.candidates import usable_on_gpu


def assert_same(got, want):
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w)


@pytest.mark.parametrize("n", [1, 7, 16, 40, 300])
@pytest.mark.parametrize("order", ["forward", "shuffled"])
def test_a_good_batch_equals_the_cpu(device, order, n, generator):
    device.configure(order=order)
    gram = random_gram(n, 20, generator)
    gram[0] = gram[:, 0] = 0
    valid = torch.rand(n, generator=generator) < 0.8
    scores = torch.rand(n, generator=generator, dtype=torch.float64)
    sketch = torch.randn(n, 33, generator=generator, dtype=torch.float64)
    for given in ((None, None, None), (valid, None, None), (valid, scores, sketch)):
        assert_same(device.usable(gram, *given), operators.usable(gram, *given, "gram", True))


def broken(generator):
    """(name, Gram matrix, scores) of everything that can be wrong."""
    gram = random_gram(9, 20, generator)
    scores = gram.diagonal().clone()
    less = scores.clone()
    less[4] = -1.0
    yield "score", gram, less
    for name, at, value in (
        ("negative", (3, 3), -1.0),
        ("products", (2, 5), 1e6),
        ("skipped", (6, 6), torch.nan),
        ("skipped", (6, 6), 1e151),
        ("entries", (2, 5), torch.nan),
    ):
        wrong = gram.clone()
        wrong[at] = value
        yield name, wrong, None


def test_what_is_wrong_becomes_a_code_and_nobody_is_valid(device, generator, monkeypatch):
    monkeypatch.setattr(candidates.launch, "BUILT", False)  # plain torch, below, on CPU tensors
    for name, gram, scores in broken(generator):
        left, informativeness, valid, _, wrong = device.usable(gram, scores=scores)
        assert wrong == WRONGS[name]
        assert not valid.any() and (left == 0).all() and (informativeness == 0).all()
        plain = usable_on_gpu(gram, None, scores, None, "gram", True)
        assert plain[-1] == WRONGS[name] and not plain[2].any()


def test_norms_too_small_for_a_double_and_samples_left_out_are_nothing_wrong(device, monkeypatch):
    monkeypatch.setattr(candidates.launch, "BUILT", False)
    gram = torch.diag(torch.tensor([0.0, 2.0, 1e-320, 1.0], dtype=torch.float64))
    gram[0, 1] = gram[1, 0] = -1e-171
    gram[2, 1] = gram[1, 2] = 3e-160
    gram[3, 3], gram[3, 1] = -1.0, 50.0
    scores = torch.tensor([1.0, 1.0, 1.0, -1.0]).double()
    valid = torch.tensor([True, True, True, False])
    for given in (None, scores):
        want = operators.usable(gram, valid, given, None, "gram", True)
        assert_same(device.usable(gram, valid, given), want)
        assert_same(usable_on_gpu(gram, valid, given, None, "gram", True), want)
        assert want[2].tolist() == [False, True, True, False]


def test_what_cannot_be_scored_is_left_out_where_asked(device, generator):
    gram, sketch = random_gram(9, 20, generator), torch.zeros(9, 40, dtype=torch.float64)
    gram[6] = gram[:, 6] = torch.inf
    sketch[2, 39] = torch.nan
    got = device.usable(gram, sketch=sketch, raises=False)
    assert_same(got, operators.usable(gram, None, None, sketch, "gram", False))
    assert got[3].nonzero().flatten().tolist() == [2, 6] and got[-1] == 0
