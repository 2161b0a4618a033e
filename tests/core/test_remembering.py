"""A Selector that remembers: `Selector(ratio, remember=m)` (docs/method.md 2.4)."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from comparing import assert_relative
from remembering import ByHand
from selector_streams import PRESETS, batches, same, snapshot, unchanged

import oasis
from oasis.selection.memory import WIDTH

KINDS = ["grads", "gram", "head"]


def head(grads, width=WIDTH):
    """A HeadGram of these gradients, as if the output head had them."""
    n, rows = len(grads), torch.zeros(len(grads), width, dtype=torch.float64)
    rows[:, : grads.shape[1]] = grads
    gram, zero, none = oasis.grad_gram(grads), torch.zeros(n).double(), torch.zeros(n).long()
    return oasis.HeadGram(gram, zero, zero, zero, none, none, sketch=rows)


def given(kind, grads):
    """Keyword arguments of `select`."""
    if kind == "grads":
        return {"grads": grads}
    if kind == "gram":
        return {"gram": oasis.grad_gram(grads), "sketch": 3 * grads}
    return {"gram": head(grads)}


def used(remember=5, seed=1, steps=6, **options):
    selector = oasis.Selector(0.25, seed=seed, remember=remember, **options)
    for batch in batches(steps, seed=seed):
        selector.select(batch)
    return selector


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("remember", [1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_the_stream_of_what_is_left(preset, remember, kind):
    selector = oasis.Selector(0.25, preset=preset, remember=remember, siren="residual")
    plain = oasis.Selector(0.25, preset=preset, siren="residual")
    by_hand, wrapped = ByHand(remember), 0
    for batch in batches(30):
        batch = batch.double()
        left = by_hand.left(batch)
        got, want = selector.select(**given(kind, batch)), plain.select(gram=left)
        assert torch.equal(got.mask, want.mask)
        assert_relative(got.novel, left.diagonal(), 1e-9)
        assert_relative(got.adjusted, want.adjusted, 1e-7, floor=1e-3)
        assert torch.equal(got.informativeness, oasis.grad_gram(batch).diagonal())
        by_hand.remember(batch, got.mask)
        wrapped = int(selector.selected) // remember
    assert_relative(selector.statistics, plain.statistics, 1e-9)
    assert torch.equal(selector.counters, plain.counters)
    assert wrapped >= 1, "the ring has been filled, and begun again"
    assert (by_hand.left(batch).diagonal() < 0.99 * batch.square().sum(1)).any()


def test_many_selected_at_once_leave_the_last():
    selector, by_hand = oasis.Selector(1.0, remember=3), ByHand(3)
    for batch in batches(4, n=8):
        batch = batch.double()
        assert_relative(selector.select(batch).novel, by_hand.left(batch).diagonal(), 1e-10)
        by_hand.remember(batch, torch.ones(8, dtype=torch.bool))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_just_selected_is_not_selected_again(kind):
    torch.manual_seed(0)
    grads = torch.randn(8, 50).double()
    grads[3] *= 1.2
    selector = oasis.Selector(1 / 8, remember=4, warmup=0, slack=0.5)
    first = selector.select(**given(kind, grads))
    again = selector.select(**given(kind, grads))
    chosen = first.mask.nonzero().squeeze(1)
    assert len(chosen) >= 1
    ridge = 0.1 * first.informativeness.mean()
    square = first.informativeness[chosen]
    most = square * ridge / (square + ridge)
    assert (again.novel[chosen] <= most * (1 + 1e-6)).all()
    assert not again.mask[chosen].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_and_several_parameters(dtype):
    selector, by_hand = oasis.Selector(0.5, remember=6), ByHand(6)
    for batch in batches(8, p=100):
        parts = [batch[:, :60].reshape(8, 6, 10).to(dtype), batch[:, 60:].to(dtype)]
        flat = torch.cat([part.reshape(8, -1).double() for part in parts], 1)
        got = selector.select(parts)
        assert_relative(got.novel, by_hand.left(flat).diagonal(), 1e-5)
        by_hand.remember(flat, got.mask)


def test_long_gradients_are_sketched_well_enough():
    # 600 numbers more than a sketch: products with the memory to about sqrt(2 / 512) each.
    selector, by_hand = oasis.Selector(0.5, remember=4), ByHand(4)
    errors = []
    for batch in batches(40, p=WIDTH + 600):
        batch = batch + 3 * torch.sin(torch.arange(WIDTH + 600))  # something to share
        got, want = selector.select(batch), by_hand.left(batch)
        errors.append((got.novel - want.diagonal()) / batch.double().square().sum(1))
        by_hand.remember(batch, got.mask)
    errors = torch.cat(errors[2:])
    assert 0 < errors.square().mean().sqrt() < 2 * (2 / WIDTH) ** 0.5
    assert want.diagonal().sum() < 0.7 * batch.square().sum()


@pytest.mark.parametrize("factor", [1e-20, 1e20])
def test_the_scale_of_gradients_does_not_matter(factor):
    one, other = (oasis.Selector(0.25, remember=5, siren="residual") for _ in range(2))
    for batch in batches(12):
        a, b = one.select(batch.double()), other.select(factor * batch.double())
        assert torch.equal(a.mask, b.mask)
        assert_relative(b.novel / factor**2, a.novel, 1e-9)


def test_remembering_nothing_is_the_selector_as_it_was():
    plain, zero = oasis.Selector(0.25), oasis.Selector(0.25, remember=0)
    for batch in batches(5):
        a, b = plain.select(batch), zero.select(batch)
        assert same(a, b) and a.novel is None and b.novel is None
    assert zero.memory.shape == (0, WIDTH)
    zero.select(gram=oasis.grad_gram(batch), sketch=batch)  # not needed, not refused


@pytest.mark.parametrize("kind", KINDS)
def test_other_measures_lose_the_same_share(kind):
    selector, by_hand = oasis.Selector(0.5, remember=4), ByHand(4)
    for batch in batches(8):
        batch = batch.double()
        scores = batch[:, 0].abs() + 0.1
        share = by_hand.left(batch).diagonal() / batch.square().sum(1)
        got = selector.select(**given(kind, batch), scores=scores)
        assert_relative(got.novel, scores * share, 1e-9)
        assert torch.equal(got.informativeness, scores)
        by_hand.remember(batch, got.mask)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_scored_is_not_remembered(kind):
    selector, by_hand = oasis.Selector(1.0, remember=50, nonfinite="skip"), ByHand(50)
    for step, batch in enumerate(batches(6)):
        batch = batch.double()
        batch[step], batch[(step + 1) % 8], batch[(step + 2) % 8, 0] = torch.nan, 0.0, torch.inf
        valid = torch.ones(8, dtype=torch.bool)
        valid[(step + 3) % 8] = False
        usable = valid & batch.isfinite().all(1) & (batch != 0).any(1)
        left = by_hand.left(batch, usable)
        got = selector.select(**given(kind, batch), valid=valid)
        assert torch.equal(got.mask, usable)
        assert (got.novel[~usable] == 0).all()
        assert_relative(got.novel, left.diagonal(), 1e-9)
        by_hand.remember(batch, got.mask)
    assert selector.memory.isfinite().all()


def test_a_sketch_that_is_not_finite_is_a_sample_that_is_not():
    batch = batches(1)[0]
    sketch = batch.clone()
    sketch[2, 1] = torch.nan
    selector = oasis.Selector(1.0, remember=4)
    before = snapshot(selector)
    with pytest.raises(ValueError, match=r"samples \[2\]"):
        selector.select(gram=oasis.grad_gram(batch), sketch=sketch)
    assert unchanged(selector, before)
    selector.nonfinite = "skip"
    got = selector.select(gram=oasis.grad_gram(batch), sketch=sketch)
    assert got.skipped.tolist() == [i == 2 for i in range(8)] and not got.mask[2]


def test_resumed_in_the_middle_of_a_stream():
    whole, stream = oasis.Selector(0.25, remember=5), batches(20)
    want = [whole.select(batch) for batch in stream]
    first = oasis.Selector(0.25, remember=5)
    for batch in stream[:9]:
        first.select(batch)
    resumed = oasis.Selector(0.25, remember=5, seed=8)
    resumed.load_state_dict(first.state_dict())
    copies = [resumed, copy.deepcopy(first), pickle.loads(pickle.dumps(first)), first]
    for selector in copies:
        for batch, selection in zip(stream[9:], want[9:], strict=True):
            got = selector.select(batch)
            assert same(got, selection) and torch.equal(got.novel, selection.novel)
        assert unchanged(selector, snapshot(whole))


def test_moves_keep_the_memory():
    selector = used()
    before = snapshot(selector)
    selector.half().to("cpu")
    assert unchanged(selector, before) and selector.memory.dtype == torch.float64
    assert selector.to("meta").memory.device.type == "meta"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda b: {"gram": oasis.grad_gram(b)}, "sketch: got None"),
        (lambda b: {"gram": oasis.HeadGram(*[oasis.grad_gram(b)] * 6)}, r"sketch=512"),
        (lambda b: {"grads": b[:, :7]}, "grads: got gradients of 7 numbers, expected gradients"),
        (lambda b: given("gram", b), "sketch: got given sketches of 20 numbers"),
        (lambda b: given("head", b), "gram: got head sketches of 512 numbers"),
        (lambda b: {"grads": b, "sketch": b}, "sketch: expected only beside gram"),
        (lambda b: {"gram": head(b), "sketch": b}, "sketch: expected only beside gram"),
        (lambda b: {"gram": head(b, 513)}, r"gram.sketch: got shape \[8, 513\]"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b[:3]}, r"sketch: got shape \[3, 20\]"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b[:, :0]}, r"sketch: got shape \[8, 0\]"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b[0]}, r"sketch: got shape \[20\]"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b.int()}, "sketch: got torch.int32"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b.tolist()}, "sketch: got list"),
        (lambda b: {"gram": oasis.grad_gram(b), "sketch": b.to("meta")}, "sketch: got device meta"),
    ],
)
def test_refusals_leave_the_state(call, error):
    selector, batch = used(), batches(1)[0]
    before = snapshot(selector)
    with pytest.raises((TypeError, ValueError), match=error):
        selector.select(**call(batch))
    assert unchanged(selector, before)
    assert same(selector.select(batch), used().select(batch))


def test_sketches_of_another_seed_are_refused(generator):
    hidden, labels = torch.randn(8, 5, generator=generator), torch.arange(8)
    head = torch.randn(30, 5, generator=generator), labels, labels
    selector = oasis.Selector(0.5, remember=4)
    selector.select(gram=oasis.head_gram(hidden, *head, num_samples=8))
    before = snapshot(selector)
    with pytest.raises(ValueError, match="gram: got head sketches .* seed 1, expected .* seed 0"):
        selector.select(gram=oasis.head_gram(hidden, *head, num_samples=8, seed=1))
    assert unchanged(selector, before)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"remember": -1}, "remember: got -1"),
        ({"remember": 2.5}, "remember: got 2.5"),
        ({"remember": True}, "remember: got True"),
        ({"remember": 4, "memory_ridge": 0.0}, "memory_ridge: got 0.0"),
        ({"remember": 4, "memory_ridge": float("nan")}, "memory_ridge: got nan"),
        ({"remember": 4, "memory_ridge": float("inf")}, "memory_ridge: got inf"),
    ],
)
def test_bad_options(options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        oasis.Selector(0.25, **options)


def shortened(state):
    state["memory"] = state["memory"][:4]


def with_nan(state):
    state["memory"][2, 3] = torch.nan


def rounded(state):
    state["memory"] = state["memory"].float()


def of_another_kind(state):
    state["_extra_state"] = used(remember=0).get_extra_state()


def of_nothing(state):
    state["_extra_state"] = oasis.Selector(0.25, remember=5).get_extra_state()


@pytest.mark.parametrize("fault", [shortened, with_nan, rounded, of_another_kind, of_nothing])
def test_a_broken_memory_is_refused(fault):
    state, selector = copy.deepcopy(used().state_dict()), used(seed=2)
    before = snapshot(selector)
    fault(state)
    with pytest.raises((TypeError, ValueError), match=r"^state: (memory|_extra_state)"):
        selector.load_state_dict(state)
    assert unchanged(selector, before)


def test_a_selector_that_remembers_another_number_refuses():
    selector = used(remember=4)
    before = snapshot(selector)
    with pytest.raises(ValueError, match="saved with remember=5, expected 4"):
        selector.load_state_dict(used(remember=5).state_dict())
    assert unchanged(selector, before)


def test_the_kind_is_taken_over():
    selector = oasis.Selector(0.25, remember=5)
    selector.load_state_dict(used().state_dict())
    with pytest.raises(ValueError, match="got gradients of 9 numbers"):
        selector.select(torch.randn(8, 9))
