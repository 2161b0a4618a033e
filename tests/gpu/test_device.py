"""The operators on a GPU: against the CPU and the reference, on side streams, in CUDA graphs.

Collected where there is a GPU (conftest.py). OASIS_TEST_DEVICE=cpu runs everything but the streams
and graphs on CPU tensors, which is how `bench/device.sh --dry` checks this file itself.
"""

from __future__ import annotations

import os

import pytest
import torch
from comparing import assert_relative, cosine_scaled, float64
from oris_steps import oris_options
from right_answers import head_arguments, vectors

import oasis
from oasis import reference
from oasis.names import DRAWS, RULES

DEVICE = torch.device(os.environ.get("OASIS_TEST_DEVICE") or "cuda")
GPU = DEVICE.type == "cuda"
LOW = (torch.bfloat16, torch.float16)
# Of oris_, after the state.
OPTIONS = oris_options(slack=0.0045)


def gram_of(n: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(1, 3 * n, generator=g, dtype=torch.float64)
    grads = torch.randn(n, 3 * n, generator=g, dtype=torch.float64) + common
    return grads @ grads.T


def moved(x, device=DEVICE):
    """The same arguments on another device."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {k: moved(v, device) for k, v in x.items()}
    return [moved(v, device) for v in x] if isinstance(x, list) else x


def on_side_stream(function):
    """What `function` returns on a stream of its own, which must wait for nobody else's work."""
    if not GPU:
        return function()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = function()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def captured(function, warmup: int = 2):
    """(replay, result) of `function` in a CUDA graph; without a GPU, replay calls it again."""
    if not GPU:
        result = [x.clone() for x in function()]

        def again():
            for kept, new in zip(result, function(), strict=True):
                kept.copy_(new)

        return again, result
    for _ in range(warmup):
        on_side_stream(function)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph.replay, result


# --- grad_gram --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (16, 4099), (33, 1000), (64, 257)], ids=str)
def test_grad_gram_equals_the_reference(shape, dtype, generator):
    grads = torch.randn(*shape, generator=generator).to(dtype)
    want = reference.grad_gram(grads)
    got = oasis.grad_gram(grads.to(DEVICE))
    assert got.device.type == DEVICE.type and got.dtype == torch.float64
    bound = {torch.float64: 1e-14, torch.float32: 2.3e-6}.get(dtype, 2.5e-6)
    wide = grads.double().reshape(shape[0], -1).abs()
    assert ((got.cpu() - want).abs() <= bound * (wide @ wide.T)).all()


def test_grad_gram_takes_strides_lists_and_misaligned_rows(generator):
    whole = torch.randn(5, 6, 41, generator=generator)
    grads = [whole, whole[..., 1:], whole.transpose(1, 2), whole[:, 0, 0]]
    want = reference.grad_gram(grads)
    got = oasis.grad_gram([g.detach() for g in moved(grads)])
    assert cosine_scaled(got.cpu() - want, want).max() < 1e-6


def test_grad_gram_repeats_bit_for_bit(generator):
    grads = torch.randn(16, 1 << 18, generator=generator).to(DEVICE)
    assert torch.equal(oasis.grad_gram(grads), oasis.grad_gram(grads))


def test_offsets_beyond_32_bits():
    """The last columns of rows longer than 2^31 numbers, alone non-zero; 13 GB of bfloat16."""
    columns = (1 << 31) + 40 if GPU else 40
    if GPU and torch.cuda.mem_get_info()[0] < 20 << 30:
        columns = 1 << 20
    grads = torch.zeros(3, columns, dtype=torch.bfloat16, device=DEVICE)
    tail = torch.arange(24, dtype=torch.bfloat16, device=DEVICE).view(3, 8)
    grads[:, -8:] = tail
    assert_relative(oasis.grad_gram(grads).cpu(), (tail.double() @ tail.double().T).cpu(), 1e-6)


# --- siren, oris ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", vectors("siren"), ids=lambda c: c["name"])
def test_siren_vectors(case):
    result = oasis.siren(oasis.grad_gram(float64(case["grads"]).to(DEVICE)))
    assert result.adjusted.device.type == DEVICE.type
    assert_relative(result.adjusted.cpu(), case["adjusted"], 1e-10, floor=1.0)
    assert result.order.tolist() == case["order"]


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("n", [1, 2, 5, 13, 16, 17, 20])
def test_siren_equals_the_cpu(method, n):
    gram, valid = gram_of(n), torch.ones(n, dtype=torch.bool)
    valid[n // 3] = n < 5
    want = oasis.siren(gram, method=method, valid=valid)
    got = oasis.siren(gram.to(DEVICE), method=method, valid=valid.to(DEVICE))
    assert_relative(got.adjusted.cpu(), want.adjusted, 1e-9, floor=float(gram.diagonal().max()))
    assert got.order.tolist() == want.order.tolist()


@pytest.mark.parametrize("n", [1, 4, 9])
def test_siren_equals_the_reference(n):
    gram = gram_of(n, seed=5)
    want, got = reference.siren(gram), oasis.siren(gram.to(DEVICE))
    assert_relative(got.adjusted.cpu(), want.adjusted, 1e-9, floor=float(gram.diagonal().max()))
    assert got.order.tolist() == list(want.order)


@pytest.mark.parametrize("n", [64, 200, 256])
def test_residual_equals_the_cpu_for_many(n):
    gram = gram_of(n)
    want = oasis.siren(gram, method="residual", ridge=0.01)
    got = oasis.siren(gram.to(DEVICE), method="residual", ridge=0.01)
    assert_relative(got.adjusted.cpu(), want.adjusted, 1e-8, floor=float(gram.diagonal().max()))
    assert got.order.tolist() == want.order.tolist()


@pytest.mark.parametrize("preset", sorted(oasis.PRESETS))
@pytest.mark.parametrize("draw", DRAWS)
def test_a_stream_of_selections_equals_the_cpu(preset, draw):
    # Each goes past its warm-up here.
    options = {"preset": preset, "seed": 7, "draw": draw, "warmup": 40}
    here, there = (oasis.Selector(0.3, **options) for _ in range(2))
    there.to(DEVICE)
    for step in range(12):
        gram = gram_of(6 + step, seed=step)
        want, got = here.select(gram=gram), there.select(gram=gram.to(DEVICE))
        assert got.mask.device.type == DEVICE.type
        assert torch.equal(got.mask.cpu(), want.mask), step
        for name in ("adjusted", "relative", "probability"):
            assert_relative(getattr(got, name).cpu(), getattr(want, name), 1e-8, floor=1.0)
    assert torch.equal(there.counters.cpu(), here.counters)
    assert_relative(there.statistics.cpu(), here.statistics, 1e-9, floor=1e-3)


def test_the_state_stays_on_the_device_and_crosses_devices():
    selector = oasis.Selector(0.5, seed=3).to(DEVICE)
    selector.select(gram=gram_of(8).to(DEVICE))
    assert selector.statistics.device.type == selector.counters.device.type == DEVICE.type
    assert selector.mean.device.type == selector.threshold.device.type == DEVICE.type
    saved = {k: v.cpu() for k, v in selector.state_dict().items()}
    resumed = oasis.Selector(0.5, seed=99)
    resumed.load_state_dict(saved)
    gram = gram_of(8, seed=1)
    want, got = resumed.select(gram=gram), selector.select(gram=gram.to(DEVICE))
    assert torch.equal(got.mask.cpu(), want.mask)


def test_an_error_leaves_the_state_on_the_device_alone():
    selector = oasis.Selector(0.5, checks="now").to(DEVICE)
    broken = gram_of(4)
    broken[2, 2] = torch.nan
    before = selector.statistics.clone(), selector.counters.clone()
    with pytest.raises(ValueError, match="not finite"):
        selector.select(gram=broken.to(DEVICE))
    assert torch.equal(selector.statistics, before[0])
    assert torch.equal(selector.counters, before[1])


def test_a_deferred_error_selects_nothing_and_is_told_when_read():
    selector = oasis.Selector(0.5).to(DEVICE)
    broken = gram_of(4)
    broken[2, 2] = torch.nan
    before = selector.statistics.clone()
    if not GPU:  # nothing to wait for
        with pytest.raises(ValueError, match="not finite"):
            selector.select(gram=broken)
        return
    selection = selector.select(gram=broken.to(DEVICE))
    assert not selection.mask.any() and torch.equal(selector.statistics, before)
    with pytest.raises(ValueError, match="not finite"):
        selection.check()


# --- streams and graphs -----------------------------------------------------------------------


def test_a_side_stream_is_honoured(generator):
    """The inputs are written on the side stream behind a long wait: kernels queued on any other
    stream would read what was there before."""
    grads = torch.randn(16, 4096, generator=generator)
    buffer, source = torch.zeros(16, 4096, device=DEVICE), grads.to(DEVICE)
    selector = oasis.Selector(0.5, seed=1).to(DEVICE)

    def work():
        if GPU:
            torch.cuda._sleep(50_000_000)
        buffer.copy_(source)
        gram = torch.ops.oasis.grad_gram([buffer])
        valid = torch.ones(16, dtype=torch.bool, device=DEVICE)
        floor = torch.full((), -torch.inf, dtype=torch.float64, device=DEVICE)
        adjusted, _ = torch.ops.oasis.siren(gram, valid, floor, "exact", 0.0)
        scores = gram.diagonal().clone()
        state = selector.statistics, selector.counters
        return gram, adjusted, *torch.ops.oasis.oris_(scores, adjusted, valid, *state, OPTIONS)

    gram, adjusted, _, _, mask = on_side_stream(work)
    want = oasis.grad_gram(grads)
    assert cosine_scaled(gram.cpu() - want, want).max() < 1e-6
    assert_relative(adjusted.cpu(), oasis.siren(want).adjusted, 1e-4, floor=float(want.max()))
    assert int(selector.selected) == int(mask.sum())


@pytest.mark.parametrize(
    "n, method", [(4, "exact"), (16, "exact"), (18, "exact"), (64, "residual")]
)
def test_siren_and_oris_in_a_graph(n, method):
    """Captured once, replayed on new Gram matrices: a stream equal to the CPU's."""
    selector, other = (oasis.Selector(0.25, seed=11) for _ in range(2))
    selector.to(DEVICE)
    gram = gram_of(n).to(DEVICE)
    valid = torch.ones(n, dtype=torch.bool, device=DEVICE)
    floor = torch.full((), -torch.inf, dtype=torch.float64, device=DEVICE)

    def step():
        adjusted, order = torch.ops.oasis.siren(gram, valid, floor, method, 0.0)
        state = selector.statistics, selector.counters
        scores = gram.diagonal().clone()
        return adjusted, order, *torch.ops.oasis.oris_(scores, adjusted, valid, *state, OPTIONS)

    start = selector.statistics.clone(), selector.counters.clone()
    replay, (adjusted, order, _, probability, mask) = captured(step)
    selector.statistics.copy_(start[0])  # what warming up did to the state is undone
    selector.counters.copy_(start[1])
    for seed in range(4):
        new = gram_of(n, seed=seed)
        gram.copy_(new)
        replay()
        want = oasis.siren(new, method=method)
        state = other.statistics, other.counters
        wanted = torch.ops.oasis.oris_(
            new.diagonal().clone(), want.adjusted, valid.cpu(), *state, OPTIONS
        )
        top = float(new.diagonal().max())
        assert order.tolist() == want.order.tolist()
        assert_relative(adjusted.cpu(), want.adjusted, 1e-8, floor=top)
        assert_relative(probability.cpu(), wanted[1], 1e-7, floor=1e-3)
        assert torch.equal(mask.cpu(), wanted[2])
    assert torch.equal(selector.counters.cpu(), other.counters)


# --- head_gram --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", vectors("head_gram"), ids=lambda c: c["name"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_head_gram_vectors(case, dtype):
    result = oasis.head_gram(**moved(head_arguments(case, dtype)))
    want = float64(case["gram"])
    error = cosine_scaled(result.gram.cpu() - want, want).max()
    rounding = max(abs(x) for row in case["hidden"] for x in row)
    assert error < (1e-9 if dtype == torch.float64 else 1e-3 * max(1.0, rounding)), float(error)


def head_problem(dtype, tokens, width, vocabulary, samples, generator):
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = (torch.randn(vocabulary, width, generator=generator) / width**0.5).to(dtype)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    labels[::7] = -100
    sample = torch.randint(samples, (tokens,), generator=generator)
    return {"hidden": hidden, "weight": weight, "labels": labels, "sample": sample,
            "num_samples": samples}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 5.0, "scale": 0.5, "reduction": "sum"}], ids=str
)
@pytest.mark.parametrize("method", ["ghost", "instantiate"])
def test_head_gram_equals_the_cpu_in_float64(dtype, options, method, generator):
    problem = head_problem(dtype, 131, 72, 1009, 6, generator)
    wide = problem | {k: problem[k].double() for k in ("hidden", "weight")}
    want = oasis.head_gram(**wide, **options)
    got = oasis.head_gram(**moved(problem), **options, method=method)
    assert cosine_scaled(got.gram.cpu() - want.gram, want.gram).max() < 2e-3
    for name in ("loss", "entropy", "el2n"):
        assert_relative(getattr(got, name).cpu(), getattr(want, name), 1e-3, floor=1.0)
    assert torch.equal(got.tokens.cpu(), want.tokens)
    again = oasis.head_gram(**moved(problem), **options, method=method)
    assert torch.equal(again.gram, got.gram)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_float8_lies_within_its_rounding(dtype, generator):
    """docs/method.md 1; as the interpreted kernels, but by the card's tensor cores."""
    problem = head_problem(dtype, 131, 72, 1009, 6, generator)
    if not GPU or torch.cuda.get_device_capability() < (8, 9):
        with pytest.raises(ValueError, match="float8"):
            oasis.head_gram(**moved(problem), method="float8")
        return
    wide = problem | {k: problem[k].double() for k in ("hidden", "weight")}
    want, got = oasis.head_gram(**wide), oasis.head_gram(**moved(problem), method="float8")
    assert cosine_scaled(got.gram.cpu() - want.gram, want.gram).max() < 2.0**-4
    assert_relative(got.loss.cpu(), want.loss, 1e-3, floor=1.0)
    again = oasis.head_gram(**moved(problem), method="float8")
    assert torch.equal(again.gram, got.gram)


def test_head_gram_equals_the_reference(generator):
    problem = head_problem(torch.float32, 23, 9, 57, 4, generator)
    want, got = reference.head_gram(**problem), oasis.head_gram(**moved(problem))
    assert cosine_scaled(got.gram.cpu() - want.gram, want.gram).max() < 1e-5


def test_head_gram_on_a_side_stream(generator):
    problem = moved(head_problem(torch.bfloat16, 96, 64, 700, 4, generator))
    want = oasis.head_gram(**problem)
    hidden, problem["hidden"] = problem["hidden"], torch.zeros_like(problem["hidden"])

    def work():
        if GPU:
            torch.cuda._sleep(50_000_000)
        problem["hidden"].copy_(hidden)
        return oasis.head_gram(**problem)

    assert torch.equal(on_side_stream(work).gram, want.gram)


def test_from_hidden_states_to_the_mask_in_a_graph(generator):
    """Captured once, replayed on new hidden states: the stream of the same selector eagerly."""
    problem = moved(head_problem(torch.bfloat16, 96, 64, 700, 6, generator))
    selector, other = (oasis.Selector(0.5, seed=11).to(DEVICE) for _ in range(2))

    def step(selector=selector):
        scores = oasis.head_gram(**problem, method="ghost")
        selection = selector.select(gram=scores)
        return selection.mask, selection.probability

    start = selector.statistics.clone(), selector.counters.clone()
    replay, (mask, probability) = captured(step)
    for turn in range(3):
        problem["hidden"].copy_(torch.randn(96, 64, generator=generator))
        if turn == 0:  # what warming up did to the state is undone
            selector.statistics.copy_(start[0])
            selector.counters.copy_(start[1])
        replay()
        want = step(other)
        assert torch.equal(mask, want[0]) and torch.equal(probability, want[1])
    assert torch.equal(selector.counters, other.counters)


def test_wrong_devices_are_named():
    selector = oasis.Selector(0.5).to(DEVICE)
    elsewhere = torch.eye(3, device="cpu" if GPU else "meta")
    with pytest.raises(ValueError, match="device"):
        selector.select(gram=elsewhere)
