"""head_gram by folded tokens: unbiased, labels exact, a Gram matrix; and only where asked for."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled
from head_problems import METRICS, assert_same, confident, problem

import oasis
from oasis import reference
from oasis.gram import cost
from oasis.gram.rates import CUDA

BACKENDS = ("compiled", "torch")


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")


def folded(arguments, dim, seed=0, **options):
    return oasis.head_gram(**arguments, method="folded", sketch_dim=dim, seed=seed, **options)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_folded_is_exact(reduction, softcap, backend, generator):
    arguments = problem(generator, lengths=[3, 0, 11, 4], d=6, v=700, shuffle=True)
    arguments |= {"reduction": reduction, "softcap": softcap, "scale": -1.5}
    assert_same(folded(arguments, 700), reference.head_gram(**arguments), 1e-10)


@pytest.mark.parametrize("margin", [0.0, 30.0])
def test_labels_are_exact_however_few_columns(margin, backend, generator):
    # All that is predicted is somebody's label; nothing else has a probability.
    arguments = confident(
        generator, lengths=[3, 2, 4], d=16, v=2000, margin=margin, dtype=torch.float64
    )
    bias = torch.full((2000,), -torch.inf, dtype=torch.float64)
    bias[arguments["labels"]] = 0.0
    got = folded(arguments, 16, bias=bias)
    assert_same(got, reference.head_gram(**arguments, bias=bias), 1e-9)


def test_unbiased_with_the_stated_error(generator):
    arguments = problem(generator, lengths=[4, 1, 6, 0, 3], d=6, v=900, sharpness=3.0)
    want, dim, seeds = reference.head_gram(**arguments), 64, 80
    grams = torch.stack([folded(arguments, dim, seed).gram for seed in range(seeds)])
    norm = want.gram.diagonal().sqrt().clamp(min=1e-100)
    error = (grams - want.gram) / (norm * norm.unsqueeze(1))
    deviation = error.square().mean(0).sqrt()
    assert deviation.max() <= (2 / dim) ** 0.5
    assert deviation.max() >= 0.01 * (2 / dim) ** 0.5, "an estimate, not the exact matrix"
    # The mean of the estimates lies within 4.5 standard errors of K.
    assert (error.mean(0).abs() <= 4.5 * deviation / seeds**0.5 + 1e-12).all()


@pytest.mark.parametrize("sharpness", [1.0, 4.0, 8.0])
def test_scores_keep_their_order(sharpness, generator):
    # 16 samples, a sixth of a vocabulary: what docs/method.md says of m = 4096.
    arguments = problem(
        generator, lengths=[4] * 16, d=24, v=24000, sharpness=sharpness, dtype=torch.float32
    )
    arguments["hidden"] *= torch.linspace(0.5, 2, 64).unsqueeze(1)
    want, got = reference.head_gram(**arguments).gram, folded(arguments, 4096).gram
    assert (got.diagonal() / want.diagonal() - 1).abs().max() < 0.05
    assert cosine_scaled(got - want, want).max() < 0.05
    ranks = torch.stack([x.diagonal().argsort().argsort() for x in (got, want)]).double()
    assert torch.corrcoef(ranks)[0, 1] >= 0.99


def test_it_is_a_gram_matrix(generator):
    arguments = problem(generator, lengths=[2] * 40, d=12, v=3000, sharpness=4.0)
    gram = folded(arguments, 32).gram
    lowest = torch.linalg.eigvalsh(gram)[0]
    assert lowest >= -1e-12 * gram.diagonal().max()
    arguments["hidden"][2:4] = arguments["hidden"][:2]  # the second sample is the first again
    arguments["labels"][:4] = torch.tensor([5, 7, 5, 7])
    again = folded(arguments, 32).gram
    assert again[0, 1] == pytest.approx(float(again[0, 0]), rel=1e-12)
    assert oasis.Selector(0.5).select(gram=again).mask.any()


@pytest.mark.parametrize("slope", [40.0, -40.0])
def test_it_follows_the_running_maximum(slope, backend, generator, monkeypatch):
    monkeypatch.setattr("oasis.gram.problem.BLOCK_ELEMENTS", 1 << 12)
    arguments = problem(generator, lengths=[5, 6], d=6, v=2000)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 2000)
    arguments["hidden"][:, 0] = 1.0
    assert_same(folded(arguments, 2000), reference.head_gram(**arguments), 1e-9)
    folds = folded(arguments, 64, 5)
    monkeypatch.setattr("oasis.gram.problem.BLOCK_ELEMENTS", 1 << 13)
    assert_same(folds, folded(arguments, 64, 5), 1e-12)  # the same whatever the blocks


def test_all_but_the_matrix_is_exact_and_the_same_for_a_seed(backend, generator):
    arguments = problem(generator, lengths=[9, 0, 20, 5], d=8, v=1500, dtype=torch.bfloat16)
    got = folded(arguments, 64, 3, sketch=48)
    want = oasis.head_gram(**arguments, method="ghost", seed=3, sketch=48)
    assert got.method == "folded"
    for name in (*METRICS, "correct", "tokens", "sketch"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    assert torch.equal(folded(arguments, 64, 3).gram, got.gram)
    assert not torch.equal(folded(arguments, 64, 4).gram, got.gram)
    assert (got.gram[1] == 0).all()


def test_a_bad_sample_stays_in_its_row(generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=900, masked=0)
    clean = folded(arguments, 64)
    arguments["hidden"][4, 1] = float("nan")
    got = folded(arguments, 64)
    others = [0, 2]
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    assert not torch.isfinite(got.gram[1, 1])


def test_it_is_offered_and_never_taken(generator):
    gpu = torch.device("cuda")
    for samples in (16, 1024, 10**5):
        for tokens in (100, 10**4, 10**6):
            for device in (cost.HOST, gpu):
                shape = tokens, 4096, 128_256, samples
                assert cost.pick(*shape, device=device) != "folded"
    arguments = problem(generator, lengths=[3, 2], d=4, v=90)
    with pytest.raises(ValueError, match="method: got 'folded' with vocab_range, expected 'ghost'"):
        oasis.head_gram(**arguments, method="folded", vocab_range=(0, 90))
    with pytest.raises(ValueError, match="sketch_dim: got 8"):
        folded(arguments, 8)


def test_it_saves_the_products_of_tokens():
    shape = {"tokens": 3200, "width": 4096, "vocabulary": 128_256, "samples": 16}
    rates = CUDA[90]
    ghost, fold = (
        cost.work(method, dtype=torch.bfloat16, rates=rates, **shape)
        for method in ("ghost", "folded")
    )
    assert fold.seconds(rates) < 0.7 * ghost.seconds(rates)
    assert fold.traffic < 0.8 * ghost.traffic
