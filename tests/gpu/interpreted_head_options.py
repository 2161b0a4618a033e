"""Options of head_gram, and confident tokens, in Triton's interpreter (see interpreted_head.py)."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import confident, problem
from interpreted import CAPPED_BOUND, HALF_BOUND, assert_like_reference, by_ghost

import oasis
from oasis import reference

__all__ = ["by_ghost"]  # a fixture of every test here


@pytest.mark.parametrize(
    ("softcap", "dtype", "rtol"),
    [
        (None, torch.float32, 1e-5),
        (3.0, torch.float32, 1e-5),
        (None, torch.bfloat16, CAPPED_BOUND),
        (30.0, torch.bfloat16, CAPPED_BOUND),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("scale", "with_bias", "reduction"),
    [(0.125, True, "mean"), (2.5, False, "sum"), (-1.5, True, "mean")],
)
def test_head_variants(reduction, scale, with_bias, softcap, dtype, rtol, generator):
    arguments = problem(
        generator, lengths=[2, 1, 4], d=6, v=137, sharpness=2.0, dtype=dtype, shuffle=True
    )
    arguments |= {"reduction": reduction, "softcap": softcap, "scale": scale}
    if with_bias:
        arguments["bias"] = torch.randn(137, generator=generator).to(dtype)
    assert_like_reference(arguments, rtol, 1e-5)


@pytest.mark.parametrize("method", ["ghost", "folded"])
def test_autocast_halves_nothing(method, generator):
    """Inner products of the hidden states here are beyond float16."""
    arguments = problem(generator, lengths=[2, 1, 4], d=64, v=137, dtype=torch.float32)
    arguments["hidden"] *= 40
    want = oasis.head_gram(**arguments, method=method)
    with torch.autocast("cpu", dtype=torch.float16):
        got = oasis.head_gram(**arguments, method=method)
    assert torch.equal(got.gram, want.gram) and torch.equal(got.loss, want.loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_saturated_softcap(dtype, generator):
    # The likeliest columns hardly count: their chain factor is down to 4 exp(-2 x 50 / 12). Here
    # float16 entries relative to the largest p, not to the largest p f, would be lost.
    arguments = problem(generator, lengths=[7, 6], d=6, v=200, dtype=dtype)
    arguments["weight"][:, 0] = 0
    arguments["weight"][50:80, 0] = 50
    arguments["hidden"][:, 0] = 1
    arguments["labels"][arguments["labels"] != -100] %= 50
    arguments["softcap"] = 12.0
    truth, got = reference.head_gram(**arguments), oasis.head_gram(**arguments)
    bound = 1e-5 if dtype == torch.float32 else CAPPED_BOUND
    assert cosine_scaled(got.gram - truth.gram, truth.gram).max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("margin", [15.0, 40.0])
def test_confident_tokens_keep_relative_precision(margin, dtype, generator):
    arguments = confident(generator, lengths=[3, 2, 4], d=16, v=200, margin=margin, dtype=dtype)
    truth, got = reference.head_gram(**arguments), oasis.head_gram(**arguments)
    assert 0 < truth.gram.diagonal().max() < 0.1
    exact = arguments["hidden"].double() @ arguments["weight"].double().T
    logits = (arguments["hidden"].float() @ arguments["weight"].float().T).double()
    # float32 logits of this size are themselves uncertain: twice in p^2.
    bound = 1e-5 + 2 * float((logits - exact).abs().max())
    assert bound < 1e-4
    if dtype != torch.float32:
        bound += HALF_BOUND
    assert_relative(got.gram.diagonal(), truth.gram.diagonal(), bound)
    assert cosine_scaled(got.gram - truth.gram, truth.gram).max() <= bound
    assert_relative(got.loss, truth.loss, 1e-4)


def test_vocabulary_padded_with_minus_infinity(generator):
    arguments = problem(generator, lengths=[3, 4], d=6, v=300, dtype=torch.float32)
    arguments["labels"] = arguments["labels"].where(arguments["labels"] < 120, -100)
    short = arguments | {"weight": arguments["weight"][:120]}
    bias = torch.zeros(300)
    bias[120:] = -torch.inf
    want = reference.head_gram(**short)
    got = oasis.head_gram(**arguments, bias=bias)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-5
    assert_relative(got.entropy, want.entropy, 1e-5)
    # The same with the padding first: whole blocks of nothing before anything.
    arguments["weight"], bias = arguments["weight"].flip(0), bias.flip(0)
    labels = arguments["labels"]
    arguments["labels"] = torch.where(labels == -100, labels, 299 - labels)
    got = oasis.head_gram(**arguments, bias=bias)
    assert cosine_scaled(got.gram - want.gram, want.gram).max() < 1e-5
    assert_relative(got.entropy, want.entropy, 1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("slope", [0.0, 40.0, -40.0])
def test_sketches_are_those_of_other_backends(dtype, rtol, slope, monkeypatch, generator):
    arguments = problem(generator, lengths=[9, 0, 20, 5], d=8, v=300, dtype=dtype, sharpness=2.0)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 300)
    arguments["hidden"][:, 0], arguments["labels"][[3, 12]] = 1.0, -100
    got = oasis.head_gram(**arguments, method="ghost", sketch=64, seed=3).sketch
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    want = oasis.head_gram(**arguments, method="ghost", sketch=64, seed=3).sketch
    assert ((got - want).norm(dim=1) <= rtol * want.norm(dim=1)).all()
    assert (got[1] == 0).all()
