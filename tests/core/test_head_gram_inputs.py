"""What head_gram takes: layouts, masked and bad samples; and what it refuses."""

from __future__ import annotations

import pytest
import torch
from comparing import cosine_scaled
from head_problems import LOW, METRICS, assert_like_reference, problem

import oasis


def _strided(x):
    """The same numbers with a step of two along every axis."""
    big = x.new_zeros([2 * s for s in x.shape])
    view = big[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    return view


@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
def test_any_layout(dtype, generator):
    arguments = problem(generator, lengths=[3, 1, 4], d=6, v=300, dtype=dtype)
    want = oasis.head_gram(**arguments)
    tensors = {k: x for k, x in arguments.items() if isinstance(x, torch.Tensor)}
    for name, x in tensors.items():
        layouts = [_strided(x), x.t().contiguous().t() if x.dim() == 2 else x.flip(0).flip(0)]
        for other in layouts:
            got = oasis.head_gram(**(arguments | {name: other}))
            # A GEMM may sum a strided operand in another order.
            error = cosine_scaled(got.gram - want.gram, want.gram).max()
            assert error <= (1e-13 if dtype == torch.float64 else 1e-5), name


def test_broadcast_labels_and_hidden(generator):
    arguments = problem(generator, lengths=[2, 3], d=6, v=40)
    arguments["labels"] = torch.tensor(7).expand(5)
    arguments["hidden"] = arguments["hidden"][:1].expand(5, 6)
    assert_like_reference(arguments)


def test_inputs_are_read_only(generator):
    arguments = problem(generator, lengths=[3, 1, 4], d=6, v=300)
    arguments["hidden"].requires_grad_()
    arguments["weight"].requires_grad_()
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    got = oasis.head_gram(**arguments)
    assert not got.gram.requires_grad and not got.loss.requires_grad
    assert all(torch.equal(arguments[k], v) for k, v in before.items())


def test_all_masked_and_empty(generator):
    arguments = problem(generator, lengths=[3, 2], d=4, v=30)
    arguments["labels"][:] = -100
    empty = {k: v[:0] for k, v in arguments.items() if k in ("hidden", "labels", "sample")}
    for case in (arguments, arguments | empty):
        got = oasis.head_gram(**case)
        assert got.gram.shape == (2, 2)
        for x in (got.gram, got.loss, got.entropy, got.el2n, got.correct, got.tokens):
            assert (x == 0).all()


def test_masked_tokens_may_hold_anything(generator):
    arguments = problem(generator, lengths=[3, 3], d=4, v=30, masked=0)
    arguments["labels"][[0, 4]] = -100
    want = oasis.head_gram(**arguments)
    arguments["hidden"][[0, 4]] = float("nan")
    got = oasis.head_gram(**arguments)
    assert torch.equal(got.gram, want.gram) and torch.equal(got.loss, want.loss)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_sample_stays_in_its_row(bad, dtype, generator):
    arguments = problem(generator, lengths=[3, 2, 4], d=4, v=5000, masked=0, dtype=dtype)
    clean = oasis.head_gram(**arguments)
    arguments["hidden"][4, 1] = bad
    got = oasis.head_gram(**arguments)
    others = [0, 2]
    assert torch.equal(got.gram[others][:, others], clean.gram[others][:, others])
    for name in METRICS:
        assert torch.equal(getattr(got, name)[others], getattr(clean, name)[others]), name
    assert got.tokens.tolist() == clean.tokens.tolist()
    assert torch.equal(got.correct[others], clean.correct[others])
    assert not torch.isfinite(got.gram[1, 1])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7F800001, 0x7FFFFFFF, -1, -(1 << 22)])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_no_nan_of_the_head_is_lost(bits, softcap, generator):
    """Whatever its last digits are, which an exponential by bits would read."""
    arguments = problem(generator, lengths=[3, 2], d=4, v=90, masked=0, dtype=torch.float32)
    arguments["labels"] %= 50
    arguments["weight"][60, 0] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    got = oasis.head_gram(**arguments, softcap=softcap)
    assert got.loss.isnan().all() and got.gram.diagonal().isnan().all()


BAD = {
    "label too large": ({"labels": [1, 2, -100, 30, 5]}, ValueError, ["labels", "30", "1", "3"]),
    "label negative": ({"labels": [1, -1, -100, 3, 5]}, ValueError, ["labels", "-1", "0", "1"]),
    "labels too short": ({"labels": [1, 2, 3]}, ValueError, ["labels", "3", "5"]),
    "labels not integers": ({"labels": [1.0] * 5}, TypeError, ["labels", "float32", "int64"]),
    "sample too short": ({"sample": [0, 1]}, ValueError, ["sample", "2", "5"]),
    "sample too large": ({"sample": [0, 0, 0, 1, 2]}, ValueError, ["sample", "2"]),
    "sample negative": ({"sample": [0, 0, 0, -1, 1]}, ValueError, ["sample", "-1"]),
    "sample not integers": ({"sample": [0.0] * 5}, TypeError, ["sample", "float32"]),
    "no samples": ({"num_samples": 0}, ValueError, ["num_samples", "0"]),
    "hidden 1-d": ({"hidden": [1.0] * 5}, ValueError, ["hidden", "5"]),
    "hidden of another width": ({"hidden": [[1.0] * 3] * 5}, ValueError, ["hidden", "3", "4"]),
    "hidden integers": ({"hidden": [[1] * 4] * 5}, TypeError, ["hidden", "int64"]),
    "weight 1-d": ({"weight": [1.0] * 4}, ValueError, ["weight", "4"]),
    "bias of another length": ({"bias": [0.0] * 29}, ValueError, ["bias", "29", "30"]),
    "reduction": ({"reduction": "average"}, ValueError, ["reduction", "average", "mean", "sum"]),
    "softcap": ({"softcap": 0.0}, ValueError, ["softcap", "0"]),
    "scale": ({"scale": float("nan")}, ValueError, ["scale", "nan"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, generator):
    change, error, words = BAD[name]
    arguments = {
        "hidden": torch.randn(5, 4, generator=generator),
        "weight": torch.randn(30, 4, generator=generator),
        "labels": torch.tensor([1, 2, -100, 3, 29]),
        "sample": torch.tensor([0, 0, 0, 1, 1]),
        "num_samples": 2,
    }
    oasis.head_gram(**arguments)
    change = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in change.items()}
    with pytest.raises(error) as caught:
        oasis.head_gram(**(arguments | change))
    for word in words:
        assert word in str(caught.value), f"{word!r} missing in: {caught.value}"


def test_tensors_on_two_devices(generator):
    arguments = problem(generator, lengths=[2, 3], d=4, v=30)
    with pytest.raises((TypeError, ValueError), match="weight"):
        oasis.head_gram(**(arguments | {"weight": arguments["weight"].to("meta")}))
