"""The regimes of head_gram: exact ones agree, the sketch is unbiased, auto names its pick."""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import assert_same, confident, plain_gram, problem
from right_answers import head_arguments, vectors

import oasis
from oasis import reference
from oasis.gram.cost import EVERYWHERE, SKETCH_SAMPLES, pick


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_instantiate_vectors(case, dtype, rtol):
    got = oasis.head_gram(**head_arguments(case, dtype), method="instantiate")
    want = torch.tensor(case["gram"], dtype=torch.float64)
    assert got.method == "instantiate"
    assert_relative(got.gram.diagonal(), want.diagonal(), rtol)
    assert cosine_scaled(got.gram - want, want).max() <= rtol


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("scale", [1.0, -2.5, 0.0])
@pytest.mark.parametrize("v", [37, 9001])
def test_instantiate_variants(reduction, softcap, scale, v, generator):
    arguments = problem(generator, lengths=[3, 0, 11, 4], d=6, v=v, shuffle=True)
    arguments |= {"reduction": reduction, "softcap": softcap, "scale": scale}
    arguments["bias"] = torch.randn(v, generator=generator, dtype=torch.float64)
    got = oasis.head_gram(**arguments, method="instantiate")
    assert_same(got, reference.head_gram(**arguments), 1e-10)


@pytest.mark.parametrize("samples", [130, 300])
def test_instantiate_many_samples(samples, generator):
    # Beyond the streaming Gram, and more than one tile of the symmetric product.
    arguments = problem(generator, lengths=[2] * samples, d=5, v=700)
    want = oasis.head_gram(**arguments, method="ghost")
    assert_same(oasis.head_gram(**arguments, method="instantiate"), want, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_instantiate_is_no_worse_than_autograd(dtype, generator):
    arguments = problem(generator, lengths=[40, 1, 70, 3], d=24, v=5000, dtype=dtype)
    truth = reference.head_gram(**arguments).gram
    got = oasis.head_gram(**arguments, method="instantiate").gram
    theirs = cosine_scaled(plain_gram(arguments) - truth, truth).max()
    assert cosine_scaled(got - truth, truth).max() <= theirs + 1e-6


@pytest.mark.parametrize("margin", [20.0, 40.0, 80.0])
def test_confident_tokens(margin, generator):
    # At 80 nats the squared entries of a gradient underflow float32: K_ii is about 1e-66.
    arguments = confident(
        generator, lengths=[3, 2, 4], d=16, v=9001, margin=margin, dtype=torch.float32
    )
    truth = reference.head_gram(**arguments)
    exact = arguments["hidden"].double() @ arguments["weight"].double().T
    logits = (arguments["hidden"] @ arguments["weight"].T).double()
    bound = 1e-5 + 2 * float((logits - exact).abs().max())
    got = oasis.head_gram(**arguments, method="instantiate")
    assert_relative(got.gram.diagonal(), truth.gram.diagonal(), bound)
    assert_same(got, truth, bound)
    estimate = oasis.head_gram(**arguments, method="sketch")
    assert cosine_scaled(estimate.gram - truth.gram, truth.gram).max() < 0.2


@pytest.mark.parametrize("method", EVERYWHERE)
def test_a_bad_sample_stays_in_its_row(method, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=5000, masked=0)
    clean = oasis.head_gram(**arguments, method=method)
    arguments["hidden"][4, 1] = float("nan")
    got = oasis.head_gram(**arguments, method=method)
    assert torch.equal(got.gram[[0, 2]][:, [0, 2]], clean.gram[[0, 2]][:, [0, 2]])
    assert torch.equal(got.loss[[0, 2]], clean.loss[[0, 2]])
    assert not torch.isfinite(got.gram[1, 1])


@pytest.mark.parametrize("method", EVERYWHERE)
def test_repeats_all_masked_and_rows_without_labels(method, generator):
    arguments = problem(generator, lengths=[30, 0, 20], d=5, v=6001, dtype=torch.float32)
    first, again = (oasis.head_gram(**arguments, method=method) for _ in range(2))
    assert torch.equal(first.gram, again.gram) and torch.equal(first.loss, again.loss)
    assert (first.gram[1] == 0).all() and (first.gram[:, 1] == 0).all()
    arguments["labels"] = torch.full_like(arguments["labels"], -100)
    nothing = oasis.head_gram(**arguments, method=method)
    assert (nothing.gram == 0).all() and (nothing.tokens == 0).all()


@pytest.mark.parametrize("method", EVERYWHERE)
def test_plain_torch_epilogue(method, generator, monkeypatch):
    # What other devices run: the same regimes around the epilogue in plain torch.
    arguments = problem(generator, lengths=[9, 4, 12], d=5, v=9001, sharpness=3.0)
    arguments |= {"softcap": 4.0, "scale": 1.5, "method": method}
    want = oasis.head_gram(**arguments)
    monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    assert_same(oasis.head_gram(**arguments), want, 1e-12)


@pytest.mark.parametrize("dim", [64, 300])
@pytest.mark.parametrize("kind", ["one token each", "many tokens"])
def test_sketch_is_unbiased_with_the_stated_error(dim, kind, generator):
    lengths = [1] * 6 if kind == "one token each" else [12] * 6
    arguments = problem(generator, lengths=lengths, d=20, v=1000, masked=0, sharpness=3.0)
    arguments["hidden"] += 1.0  # correlated gradients
    arguments["labels"] %= 7
    want = oasis.head_gram(**arguments, method="ghost")
    seeds = 200
    grams = torch.stack(
        [
            oasis.head_gram(**arguments, method="sketch", sketch_dim=dim, seed=s).gram
            for s in range(seeds)
        ]
    )
    norm = want.gram.diagonal().sqrt()
    error = (grams - want.gram) / (norm * norm.unsqueeze(1))
    deviation = error.square().mean(0).sqrt()
    assert deviation.max() <= (11 / dim) ** 0.5
    assert deviation.max() >= (0.2 / dim) ** 0.5, "an estimate, not the exact matrix"
    # The mean of 200 estimates lies within 4.5 standard errors of K.
    assert (error.mean(0).abs() <= 4.5 * deviation / seeds**0.5).all()


@pytest.mark.parametrize("slope", [60.0, -60.0])
def test_sketch_follows_the_running_maximum(slope, generator, monkeypatch):
    # A sketch so wide that nothing collides is exact, whatever the peaks do between blocks.
    monkeypatch.setattr("oasis.gram.problem.BLOCK_ELEMENTS", 1 << 12)
    arguments = problem(generator, lengths=[3, 2], d=4, v=2000, masked=0)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 2000)
    arguments["hidden"][:, 0] = 1.0
    want = reference.head_gram(**arguments)
    seen = [
        oasis.head_gram(**arguments, method="sketch", sketch_dim=1 << 16, seed=s).gram
        for s in range(8)
    ]
    error = cosine_scaled(torch.stack(seen).mean(0) - want.gram, want.gram).max()
    assert error < 0.01, f"{float(error):.3g}"
    got = oasis.head_gram(**arguments, method="instantiate")
    assert_same(got, want, 1e-10)


def test_sketch_spans_several_chunks_of_tokens(generator, monkeypatch):
    monkeypatch.setattr("oasis.gram.regimes.sketch.chunk_tokens", lambda *_: 5)
    arguments = problem(generator, lengths=[3, 0, 2, 9, 0, 1, 4], d=6, v=500)
    got = oasis.head_gram(**arguments, method="sketch", sketch_dim=64, seed=3)
    monkeypatch.undo()
    want = oasis.head_gram(**arguments, method="sketch", sketch_dim=64, seed=3)
    assert_same(got, want, 1e-12)
    other = oasis.head_gram(**arguments, method="sketch", sketch_dim=64, seed=4)
    assert not torch.equal(other.gram, want.gram)


def test_auto_names_what_it_took(generator):
    few = problem(generator, lengths=[3, 4], d=64, v=300)
    many = problem(generator, lengths=[300, 400], d=4, v=301)
    assert oasis.head_gram(**few).method == "ghost"
    got = oasis.head_gram(**many)
    assert got.method == "instantiate"
    assert torch.equal(got.gram, oasis.head_gram(**many, method="instantiate").gram)
    # An estimate only for thousands of candidates.
    assert pick(20_000, 64, 32_000, SKETCH_SAMPLES - 1) != "sketch"
    assert pick(100_000, 64, 32_000, SKETCH_SAMPLES) == "sketch"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "gost"}, ["method", "gost", "ghost", "instantiate", "sketch", "auto"]),
        ({"method": "sketch", "sketch_dim": 8}, ["sketch_dim", "8", "16"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"vocab_range": (0, 20)}, ["vocab_range", "20", "30"]),
        ({"vocab_range": (30, 0)}, ["vocab_range", "30", "first < last"]),
        ({"vocab_range": (0, 30), "method": "sketch"}, ["method", "sketch", "ghost"]),
    ],
    ids=lambda x: None,
)
def test_bad_options(options, words, generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=30)
    with pytest.raises(ValueError) as caught:
        oasis.head_gram(**arguments, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"


@pytest.mark.parametrize("method", EVERYWHERE)
@pytest.mark.parametrize("size", [3e19, 1e36])
def test_hidden_states_beyond_float32_squares_spoil_their_own_sample_alone(method, size, generator):
    arguments = problem(generator, lengths=[3, 3, 3], d=4, v=50, masked=0, dtype=torch.float32)
    without = oasis.head_gram(**arguments, method=method).gram
    arguments["hidden"][3:6] *= size
    got = oasis.head_gram(**arguments, method=method).gram
    others = torch.tensor([0, 2])
    assert_relative(got[others][:, others], without[others][:, others], 1e-5)
    if got[1, 1].isfinite():  # "instantiate" sums its Gram matrix in float64
        assert method == "instantiate"
        want = reference.head_gram(**arguments).gram
        assert_relative(got[1, 1], want[1, 1], 1e-5)
        return
    mask = oasis.Selector(ratio=1.0, nonfinite="skip").select(gram=got).mask
    assert not mask[1]
