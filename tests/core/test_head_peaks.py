"""head_gram wherever the logits peak: in any block, rising from block to block, beyond a soft cap.

The other tests' answers fit one block of the vocabulary; here every problem spans several.
"""

from __future__ import annotations

import pytest
import torch
from comparing import assert_relative, cosine_scaled
from head_problems import parts
from hypothesis import given
from hypothesis import strategies as st
from peaked_heads import VOCABULARY, assert_right, peaked_head

import oasis
from oasis import reference
from oasis.gram import problem

BACKENDS = ("compiled", "torch")
BLOCK = 1 << 13  # numbers in a block of logits here


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of some 250 columns; gives the list of those visited."""
    monkeypatch.setattr(problem, "BLOCK_ELEMENTS", BLOCK)
    visited, blocks = [], problem.Problem.blocks

    def counted(self, hidden, size):
        for first, logits in blocks(self, hidden, size):
            visited.append(first)
            yield first, logits

    monkeypatch.setattr(problem.Problem, "blocks", counted)
    return visited


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("OASIS_HEAD_BACKEND", "torch")
    return request.param


def exact_to(dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-5


@pytest.mark.parametrize("tokens_per_sample", [1, 4])
@pytest.mark.parametrize("method", ["ghost", "instantiate"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_peaks_in_any_block(dtype, method, tokens_per_sample, backend, small_blocks):
    arguments = peaked_head(dtype, tokens_per_sample=tokens_per_sample)
    got = oasis.head_gram(**arguments, method=method)
    assert len(set(small_blocks)) >= 5
    assert_right(got, reference.head_gram(**arguments), exact_to(dtype))


@pytest.mark.parametrize("method", ["ghost", "instantiate"])
def test_peaks_equal_autograd(method, backend, small_blocks):
    arguments = peaked_head(tokens_per_sample=4)
    got = oasis.head_gram(**arguments, method=method).gram
    truth = reference.grad_gram(reference.autograd_head_grads(**arguments))
    # Autograd takes the label's 1 from p: what is left is wrong by the rounding of 1.
    norm = truth.diagonal().sqrt() + 1e-15
    assert ((got - truth).abs() <= 1e-10 * norm * norm[:, None] + 1e-14 * norm.max()).all()


@pytest.mark.parametrize("softcap", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("scale", [1.0, 4.0, -0.5])
@pytest.mark.parametrize("method", ["ghost", "instantiate"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_soft_caps_and_scales(dtype, method, scale, softcap, backend, small_blocks):
    # Raw logits to 400: with a cap of 30 what is left of their gradient is 1e-11 of it.
    arguments = peaked_head(dtype, tokens_per_sample=2) | {"softcap": softcap, "scale": scale}
    got = oasis.head_gram(**arguments, method=method)
    assert_right(got, reference.head_gram(**arguments), exact_to(dtype))


@pytest.mark.parametrize("raw", [100.0, 300.0, 400.0, 1000.0])
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("method", ["ghost", "instantiate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_saturated_soft_cap_leaves_what_the_formula_says(dtype, method, label, raw, backend):
    # Two entries, at the cap and at 0: delta = (p, -p), and each column has its own slope.
    cap = 30.0
    arguments = {
        "hidden": torch.tensor([[1.0, 0.5]]).to(dtype),
        "weight": torch.tensor([[raw, 0.0], [0.0, 0.0]]).to(dtype),
        "labels": torch.tensor([label]),
        "sample": torch.tensor([0]),
        "num_samples": 1,
        "softcap": cap,
    }
    x = torch.tensor(raw, dtype=torch.float64) / cap
    p = torch.sigmoid(cap * x.tanh() * (1 if label else -1))
    want = 1.25 * p**2 * (1 + torch.cosh(x) ** -4)
    got = oasis.head_gram(**arguments, method=method).gram[0, 0]
    assert_relative(got, want, 1e-5)
    # The saturated entry alone: its row of the gradient is what a second sample meets there.
    arguments |= {
        "hidden": torch.tensor([[1.0, 0.5], [0.0, 0.5]]).to(dtype),
        "weight": torch.tensor([[raw, 0.0], [0.0, 0.0], [0.0, -raw]]).to(dtype),
        "labels": torch.tensor([0, 0]),
        "sample": torch.tensor([0, 1]),
        "num_samples": 2,
    }
    got, want = oasis.head_gram(**arguments, method=method).gram, reference.head_gram(**arguments)
    assert cosine_scaled(got - want.gram, want.gram).max() <= 1e-5


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_sketch_does_not_depend_on_the_blocks(dtype, softcap, backend, small_blocks, monkeypatch):
    # The estimate's error is its own test's concern; here: the same estimate whatever the blocks.
    arguments = peaked_head(dtype, tokens_per_sample=4) | {"softcap": softcap}
    got = oasis.head_gram(**arguments, method="sketch", sketch_dim=64)
    assert len(set(small_blocks)) >= 5
    small_blocks.clear()
    monkeypatch.setattr(problem, "BLOCK_ELEMENTS", 1 << 22)
    whole = oasis.head_gram(**(peaked_head(tokens_per_sample=4) | {"softcap": softcap}),
                            method="sketch", sketch_dim=64)  # fmt: skip
    assert set(small_blocks) == {0}
    assert_right(got, whole, exact_to(dtype))


@pytest.mark.parametrize("cuts", [(1000,), (20, 640, 1000, 1999)], ids=str)
@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_merged_ranges(dtype, softcap, cuts, backend, small_blocks):
    arguments = peaked_head(dtype, tokens_per_sample=2) | {"softcap": softcap}
    got = oasis.merge(parts(arguments, *cuts))
    assert_right(got, reference.head_gram(**arguments), exact_to(dtype))


def test_a_late_peak_in_blocks_of_usual_size():
    # The case this was first seen in: nothing patched, bfloat16, the second of two blocks.
    weight = torch.zeros(8000, 1024, dtype=torch.bfloat16)
    weight[6000, 0] = 1
    hidden = torch.zeros(2, 1024, dtype=torch.bfloat16)
    hidden[0, 0], hidden[1, 0], hidden[1, 1] = 30, 1, 1
    labels, sample = torch.tensor([5, 6000]), torch.tensor([0, 1])
    arguments = dict(hidden=hidden, weight=weight, labels=labels, sample=sample, num_samples=2)
    got = oasis.head_gram(**arguments, method="ghost")
    assert got.gram[0, 1] == pytest.approx(-29.9936, abs=1e-3)
    assert_right(got, reference.head_gram(**arguments), 1e-5)


@given(
    st.lists(
        st.tuples(st.integers(0, VOCABULARY - 1), st.integers(0, VOCABULARY - 1),
                  st.integers(0, 100), st.integers(0, VOCABULARY - 1), st.integers(0, 100)),
        min_size=2, max_size=12,
    ),
    st.sampled_from([None, 8.0, 30.0]),
    st.sampled_from(["ghost", "instantiate"]),
)  # fmt: skip
def test_any_places_and_heights(tokens, softcap, method):
    """Tokens of a label, two places and two heights each, by the compiled epilogue."""
    count = len(tokens)
    weight = torch.zeros(VOCABULARY, count + 1)
    weight[:, -1] = torch.linspace(-1, 1, VOCABULARY).mul(32).round() / 32
    for t, (_, *peaks) in enumerate(tokens):
        for place, height in zip(peaks[::2], peaks[1::2], strict=True):
            weight[place, t] = height
    arguments = {
        "hidden": torch.cat([torch.eye(count), torch.ones(count, 1) / 2], 1),
        "weight": weight,
        "labels": torch.tensor([label for label, *_ in tokens]),
        "sample": torch.arange(count) // 2,
        "num_samples": -(-count // 2),
        "softcap": softcap,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "BLOCK_ELEMENTS", BLOCK // 4)
        got = oasis.head_gram(**arguments, method=method)
    assert_right(got, reference.head_gram(**arguments), 1e-5)
