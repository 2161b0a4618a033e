"""bench/streams/exact_memory.py: the prototype of docs/method.md 2.4, with whole gradients."""

import pytest
import torch
from tiny_models import tiny_llama

from oasis import policies
from oasis.train.head import Head
from oasis.train.signals import compute


@pytest.fixture
def exact_memory(monkeypatch):
    from bench.streams import exact_memory

    monkeypatch.setattr(compute, "head_scores", compute.head_scores)  # put back afterwards
    return exact_memory


def batch(seed):
    ids = torch.randint(3, 40, (6, 9), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    labels[:, :4] = -100
    labels[2, :8] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def signals_of(model, seed):
    found = compute.compute(model, batch(seed), Head(), frozenset({"gram"}))
    return policies.Signals(6, tokens=torch.tensor([5, 5, 1, 5, 5, 5]), **found)


def test_factors_have_the_inner_products_of_the_gradients(exact_memory):
    exact_memory.ExactMemory()
    signals = signals_of(tiny_llama(), 0)
    inner = exact_memory.products(exact_memory._latest, exact_memory._latest)
    torch.testing.assert_close(inner, signals.gram, rtol=1e-4, atol=1e-6 * inner.max().item())


def test_what_was_selected_is_not_selected_again(exact_memory):
    """The same six come back: those that are remembered are spanned, but for the ridge."""
    model, policy = tiny_llama(), exact_memory.ExactMemory(0.5, remember=8, memory_ridge=1e-3)
    first = policy.observe(signals_of(model, 0))
    second = policy.observe(signals_of(model, 0))
    assert len(policy.factors) == 6 == int((first.mask | second.mask).sum())
    policy.observe(signals_of(model, 1))
    assert len(policy.factors) == 8  # the oldest go
