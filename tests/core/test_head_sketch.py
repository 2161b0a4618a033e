"""The sketches that head_gram returns beside K: of what they are, and that calls fit together."""

from __future__ import annotations

import pytest
import torch
from head_problems import confident, parts, problem

import oasis
from oasis import reference
from oasis.gram.cost import EVERYWHERE
from oasis.gram.tensor_sketch import vocabulary_sketch, width_sketch


def dense(arguments, dim, seed):
    """The same sketch of the whole gradients of autograd in float64, entry by entry."""
    wide = {k: v.double() if k in ("hidden", "weight", "bias") else v for k, v in arguments.items()}
    grads = reference.autograd_head_grads(**wide)
    v, d = grads.shape[1:]
    table = vocabulary_sketch(v, dim, seed, torch.float64, grads.device)
    width = width_sketch(d, dim, seed, torch.float64, grads.device)
    bucket = torch.zeros(d, dtype=torch.int64)
    bucket[width.order] = torch.repeat_interleave(torch.arange(dim), width.lengths)
    at = (table.buckets.long().unsqueeze(1) + bucket) % dim
    signed = grads * table.signs.unsqueeze(1) * width.signs
    out = grads.new_zeros(len(grads), dim)
    return out.index_add(1, at.flatten(), signed.flatten(1))


def assert_sketches(got, want, rtol):
    assert got.dtype == torch.float64 and got.shape == want.shape
    norms = want.norm(dim=1)
    assert ((got - want).norm(dim=1) <= rtol * norms).all(), (got - want).norm(dim=1) / norms


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")


@pytest.fixture
def narrow_blocks(monkeypatch):
    monkeypatch.setattr("oasis.gram.problem.BLOCK_ELEMENTS", 1 << 12)


@pytest.mark.parametrize("method", EVERYWHERE)
@pytest.mark.parametrize("dim", [16, 97, 4096])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_of_the_gradients_of_autograd(method, dim, softcap, backend, narrow_blocks, generator):
    # Blocks that end inside runs, ragged samples, one without labels; dim above the vocabulary.
    arguments = problem(generator, lengths=[9, 0, 17, 1, 6], d=6, v=3001, sharpness=3.0, masked=0.1)
    arguments |= {"softcap": softcap, "scale": 1.5}
    arguments["labels"][:3] = torch.tensor([0, 3000, 1024])
    arguments["bias"] = torch.randn(3001, generator=generator, dtype=torch.float64)
    got = oasis.head_gram(**arguments, method=method, sketch=dim, seed=5).sketch
    assert_sketches(got, dense(arguments, dim, 5), 1e-11)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("method", EVERYWHERE)
@pytest.mark.parametrize("slope", [60.0, -60.0])
def test_follows_the_largest_entry(method, slope, backend, narrow_blocks, generator):
    # A peak that rises through the blocks, or lies in the first; labels before, at and after it.
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=2000, masked=0)
    arguments["weight"][:, 0] = torch.linspace(0, slope, 2000)
    arguments["hidden"][:, 0] = 1.0
    arguments["labels"][:3] = torch.tensor([0, 1999, 1000])
    got = oasis.head_gram(**arguments, method=method, sketch=128).sketch
    assert_sketches(got, dense(arguments, 128, 0), 1e-10)


@pytest.mark.parametrize("method", EVERYWHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision(method, dtype, backend, generator):
    arguments = problem(generator, lengths=[40, 1, 70, 3], d=24, v=5000, dtype=dtype, sharpness=3.0)
    got = oasis.head_gram(**arguments, method=method, sketch=512).sketch
    assert_sketches(got, dense(arguments, 512, 0), 1e-5)


@pytest.mark.parametrize("method", EVERYWHERE)
@pytest.mark.parametrize("margin", [20.0, 80.0])
def test_confident_tokens(method, margin, backend, generator):
    # At 80 nats the squared entries of a gradient underflow float32: K_ii is about 1e-66.
    arguments = confident(
        generator, lengths=[3, 2, 4], d=16, v=9001, margin=margin, dtype=torch.float32
    )
    exact = arguments["hidden"].double() @ arguments["weight"].double().T
    logits = (arguments["hidden"] @ arguments["weight"].T).double()
    bound = 2e-5 + 2 * float((logits - exact).abs().max())
    got = oasis.head_gram(**arguments, method=method, sketch=64).sketch
    if margin < 40:  # beyond, the gradients of autograd have no digit left
        assert_sketches(got, dense(arguments, 64, 0), bound)
    size = got.norm(dim=1) / reference.head_gram(**arguments).gram.diagonal().sqrt()
    assert 0.3 < size.min() <= size.max() < 3


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_sizes_of_hidden_states(size, backend, generator):
    arguments = problem(generator, lengths=[3, 4], d=5, v=300, dtype=torch.float32, masked=0)
    arguments["weight"] /= size
    arguments["hidden"] *= size
    assert_sketches(oasis.head_gram(**arguments).sketch, dense(arguments, 512, 0), 1e-5)


def test_calls_belong_together(generator):
    """The mean over seeds of products between calls is the product of gradients, within error."""
    one = problem(generator, lengths=[5, 3, 8], d=8, v=700, masked=0, sharpness=2.0)
    other = problem(generator, lengths=[4, 2], d=8, v=700, masked=0) | {"weight": one["weight"]}
    other["hidden"] += 0.5
    grads = [reference.autograd_head_grads(**x).flatten(1) for x in (one, other)]
    norms = [g.norm(dim=1) for g in grads]
    seeds, dim = 150, 64
    errors = []
    for seed in range(seeds):
        a, b = (oasis.head_gram(**x, sketch=dim, seed=seed).sketch for x in (one, other))
        rows = [torch.cat([a, b]), torch.cat(grads)]
        difference = rows[0] @ rows[0].T - rows[1] @ rows[1].T
        size = torch.cat(norms)
        errors.append(difference / (size * size.unsqueeze(1)))
    error = torch.stack(errors)
    deviation = error.square().mean(0).sqrt()
    assert deviation.max() <= (11 / dim) ** 0.5
    assert (error.mean(0).abs() <= 4.5 * deviation / seeds**0.5).all()


def test_tables_of_a_longer_vocabulary_begin_alike():
    cpu = torch.device("cpu")
    short, long = (vocabulary_sketch(v, 512, 3, torch.float32, cpu) for v in (5000, 20_000))
    assert torch.equal(long.buckets[:5000], short.buckets)
    assert torch.equal(long.signs[:5000], short.signs)
    other = vocabulary_sketch(5000, 512, 4, torch.float32, cpu)
    assert not torch.equal(other.buckets, short.buckets)
    assert not torch.equal(other.signs, short.signs)


@pytest.mark.parametrize("cuts", [(1, 2), (700, 1999)])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_parts_merge_to_the_whole(cuts, softcap, backend, generator):
    arguments = problem(generator, lengths=[3, 0, 5, 2], d=6, v=2001, sharpness=3.0, shuffle=True)
    arguments["labels"][:4] = torch.tensor([0, cuts[0], cuts[1] - 1, 2000])
    arguments["weight"][:, 0] = torch.linspace(0, 40, 2001)
    arguments |= {"softcap": softcap, "scale": 1.5, "sketch": 100, "seed": 2}
    whole = oasis.head_gram(**arguments).sketch
    assert_sketches(oasis.merge(reversed(parts(arguments, *cuts))).sketch, whole, 1e-10)
    low = arguments | {k: arguments[k].float() for k in ("hidden", "weight")}
    assert_sketches(oasis.merge(parts(low, *cuts)).sketch, whole, 1e-4)


def test_parts_of_different_sketches_are_refused(generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=30)
    ends = [(0, 20), (20, 30)]
    pieces = [
        arguments | {"weight": arguments["weight"][a:b], "vocab_range": (a, b)} for a, b in ends
    ]
    for options in ({"sketch": 64}, {"seed": 1}):
        mixed = [oasis.head_gram(**pieces[0]), oasis.head_gram(**pieces[1], **options)]
        with pytest.raises(ValueError, match=r"partials: got .*expected equal ones"):
            oasis.merge(mixed)
    none = [oasis.head_gram(**pieces[0], sketch=0), oasis.head_gram(**pieces[1], sketch=0, seed=1)]
    assert oasis.merge(none).sketch is None  # the seed is of no account


@pytest.mark.parametrize("method", EVERYWHERE)
def test_none_asked_for_and_no_labels(method, generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=30)
    without = oasis.head_gram(**arguments, method=method, sketch=0)
    assert without.sketch is None
    assert torch.equal(without.gram, oasis.head_gram(**arguments, method=method).gram)
    arguments["labels"] = torch.full_like(arguments["labels"], -100)
    nothing = oasis.head_gram(**arguments, method=method).sketch
    assert nothing.shape == (2, 512) and (nothing == 0).all()


@pytest.mark.parametrize("method", EVERYWHERE)
def test_a_bad_sample_stays_in_its_row(method, backend, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=5000, masked=0)
    clean = oasis.head_gram(**arguments, method=method).sketch
    arguments["hidden"][4, 1] = float("nan")
    got = oasis.head_gram(**arguments, method=method).sketch
    assert torch.equal(got[[0, 2]], clean[[0, 2]])
    assert not got[1].isfinite().any()


@pytest.mark.parametrize("bad", [-1, 1.5, True])
def test_bad_sizes(bad, generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=30)
    with pytest.raises((TypeError, ValueError), match="sketch: got"):
        oasis.head_gram(**arguments, sketch=bad)
