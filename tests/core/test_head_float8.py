"""head_gram with E in float8: refused where nothing multiplies it, never taken, how far off it is.

The kernels' tests are tests/gpu/interpreted_tiles.py; here the rounding alone is emulated, in
float64, on numbers too many for an interpreter.
"""

from __future__ import annotations

import math

import pytest
import torch
from comparing import cosine_scaled
from head_problems import problem

import oasis
from oasis import reference
from oasis.gram import cost
from oasis.gram.backends import choice
from oasis.gram.rates import CUDA, FLOAT8
from oasis.gram.regimes import ghost

GPU = torch.device("cuda")


@pytest.fixture
def rounded(monkeypatch):
    """ "ghost" on the CPU whose products are those of E rounded as the kernels round it."""
    # The compiled epilogue lets E grow to e^16 before it rescales.
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    products = ghost.add_lower_products

    def add(out, rows):
        if rows.shape[1] != WIDTH:  # not h h^T
            rows = (rows * FLOAT8.unit).to(FLOAT8.dtype).to(rows.dtype) / FLOAT8.unit
        products(out, rows)

    monkeypatch.setattr(ghost, "add_lower_products", add)
    return lambda arguments: oasis.head_gram(**arguments, method="ghost").gram


WIDTH = 23  # of hidden states; no block of a vocabulary is as narrow


def spread(generator, sharpness):
    """16 samples of 4 tokens, a sixth of a vocabulary, as docs/method.md says of "folded"."""
    arguments = problem(
        generator, lengths=[4] * 16, d=WIDTH, v=24000, sharpness=sharpness, dtype=torch.float64
    )
    arguments["hidden"] *= torch.linspace(0.5, 2, 64).unsqueeze(1)
    return arguments


@pytest.mark.parametrize("sharpness", [1.0, 4.0, 8.0])
def test_what_rounding_to_float8_costs(sharpness, rounded, generator):
    arguments = spread(generator, sharpness)
    want, got = reference.head_gram(**arguments).gram, rounded(arguments)
    error = cosine_scaled(got - want, want).max()
    assert 1e-9 < error < 3e-3
    ranks = torch.stack([x.diagonal().argsort().argsort() for x in (got, want)]).double()
    assert torch.corrcoef(ranks)[0, 1] >= 0.999


def test_what_it_costs_at_worst(rounded):
    # Two entries of a token, the second halfway between two numbers of float8: 1/16 off.
    bias = torch.full((300,), -torch.inf, dtype=torch.float64)
    bias[:3] = torch.tensor([-40.0, 0.0, math.log(17 / 32)])
    arguments = {
        "hidden": torch.ones(1, WIDTH, dtype=torch.float64),
        "weight": torch.zeros(300, WIDTH, dtype=torch.float64),
        "labels": torch.tensor([0]),
        "sample": torch.tensor([0]),
        "num_samples": 1,
        "bias": bias,
    }
    want, got = reference.head_gram(**arguments).gram, rounded(arguments)
    error = cosine_scaled(got - want, want).max()
    assert 1e-3 < error < 2.0**-4


def test_it_is_refused_where_nothing_multiplies_it(generator, monkeypatch):
    arguments = problem(generator, lengths=[3, 2], d=4, v=90, dtype=torch.float32)
    needs = "method: got 'float8', which needs a GPU of compute capability 8.9 or newer"
    with pytest.raises(ValueError, match=needs):
        oasis.head_gram(**arguments, method="float8")
    nothing = arguments | {"labels": torch.full((5,), -100)}
    with pytest.raises(ValueError, match=needs):
        oasis.head_gram(**nothing, method="float8")
    with pytest.raises(ValueError, match="method: got 'float8' with vocab_range, expected 'ghost'"):
        oasis.head_gram(**arguments, method="float8", vocab_range=(0, 90))
    with pytest.raises(ValueError, match=f"{needs}.*do not take torch.float64"):
        choice.check_float8(GPU, torch.float64)
    choice.check_float8(GPU, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(ValueError, match=f"{needs}.*this GPU has 8.6"):
        choice.check_float8(GPU, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    choice.check_float8(GPU, torch.bfloat16)


def test_it_is_offered_and_never_taken():
    for samples in (16, 1024, 10**5):
        for tokens in (100, 10**4, 10**6):
            assert cost.pick(tokens, 4096, 128_256, samples, device=GPU) != "float8"


def test_it_halves_the_products():
    shape = {"tokens": 3200, "width": 4096, "vocabulary": 128_256, "samples": 16}
    shape |= {"dtype": torch.bfloat16, "rates": CUDA[90]}
    exact, coarse = (cost.work(method, **shape) for method in ("ghost", "float8"))
    assert coarse.tiles < 0.65 * exact.tiles and coarse.traffic < exact.traffic
