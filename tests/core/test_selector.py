"""Selector and select: a stream of batches, its state, its budget, its complaints."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from comparing import assert_relative
from hypothesis import given
from hypothesis import strategies as st
from selector_streams import PRESETS, batches, same, snapshot, unchanged

import oasis
from oasis import reference


@pytest.mark.parametrize("preset", PRESETS)
def test_a_selection_is_complete_and_consistent(preset):
    selector = oasis.Selector(0.5, preset=preset)
    candidates = selected = 0
    for grads in batches(30):
        threshold = selector.threshold.clone()
        got = selector.select(grads)
        assert got.mask.dtype == torch.bool and got.mask.shape == (8,)
        assert got.indices.tolist() == [i for i in range(8) if got.mask[i]]
        assert got.indices.dtype == got.order.dtype == torch.int64
        assert torch.equal(got.informativeness, oasis.grad_gram(grads).diagonal())
        for name in ("informativeness", "adjusted", "relative", "probability"):
            value = getattr(got, name)
            assert value.dtype == torch.float64 and value.shape == (8,)
            assert torch.isfinite(value).all()
        assert got.threshold == threshold and got.threshold.shape == ()
        assert_relative(got.probability, torch.sigmoid(got.relative - threshold), 1e-12)
        assert got.siren in ("exact", "pairwise", "residual", "none")
        assert isinstance(got.backend, str) and got.backend
        assert got.skipped.dtype == torch.bool and not got.skipped.any()
        candidates, selected = candidates + 8, selected + int(got.mask.sum())
    assert selector.batches == 30 and selector.candidates == candidates == 240
    assert selector.selected == selected > 0
    assert_relative(selector.realised_ratio, selected / 240, 1e-15)


def test_the_paper_preset_is_the_equations():
    selector = oasis.Selector(0.25, preset="paper", seed=9)
    statistics, offset = reference.Statistics(), 0
    for grads in batches(12):
        got = selector.select(grads)
        gram = reference.grad_gram(grads)
        siren = reference.siren(gram, method="exact")
        z = reference.relative(gram.diagonal(), siren.adjusted, statistics, scale="sample")
        statistics = reference.update(gram.diagonal(), statistics, beta=0.9)
        top = float(gram.diagonal().max())
        assert_relative(got.adjusted, siren.adjusted, 1e-5, floor=top)  # float32 gradients
        assert got.order.tolist() == siren.order.tolist()
        assert_relative(got.relative, z, 1e-3, floor=1.0)
        assert_relative(selector.mean, statistics.mean, 1e-6)
        assert_relative(selector.threshold, reference.threshold(0.25), 1e-9)
        chosen = reference.draw(
            got.probability, got.relative, torch.ones(8).bool(), "bernoulli", 9, offset
        )
        assert torch.equal(got.mask, chosen)
        offset += 8


def test_released_stops_at_the_threshold():
    # SIREN stops when no z exceeds the threshold; what was not picked keeps its raw score.
    selector = oasis.Selector(0.25, preset="released")
    stopped = 0
    for grads in batches(30, n=10):
        got = selector.select(grads)
        rest = sorted(set(range(10)) - set(got.order.tolist()))
        stopped += bool(rest)
        assert_relative(got.adjusted[rest], got.informativeness[rest], 1e-15)
        exact = oasis.siren(oasis.grad_gram(grads))
        picks = got.order.tolist()
        assert picks == exact.order.tolist()[: len(picks)]
        assert torch.equal(got.adjusted[picks], exact.adjusted[picks])
        assert (got.relative[picks] >= got.threshold - 1e-9).all()
    assert stopped > 10


def test_grads_gram_and_head_gram_lead_to_the_same_choice(generator):
    hidden = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 20, (12,), generator=generator)
    sample = torch.arange(12) % 4
    arguments = (hidden, weight, labels, sample)
    result = oasis.head_gram(*arguments, num_samples=4)
    grads = reference.autograd_head_grads(*arguments, num_samples=4)
    picks = [
        oasis.Selector(seed=1).select(gram=result),
        oasis.Selector(seed=1).select(gram=result.gram),
        oasis.Selector(seed=1).select(grads),
        oasis.Selector(seed=1).select([grads[:, :9], grads[:, 9:]]),
    ]
    assert same(picks[0], picks[1])
    for other in picks[2:]:
        assert torch.equal(other.mask, picks[0].mask)
        assert_relative(other.relative, picks[0].relative, 1e-9, floor=1.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_resuming_selects_the_same(preset):
    stream = batches(40)
    whole = oasis.Selector(preset=preset, seed=4)
    wanted = [whole.select(g) for g in stream]
    first = oasis.Selector(preset=preset, seed=4)
    for g in stream[:17]:
        first.select(g)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed = oasis.Selector(preset=preset, seed=99)  # the seed comes with the state
    resumed.load_state_dict(torch.load(file, weights_only=True))
    others = [resumed, copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    for selector in others:
        assert all(
            same(selector.select(g), w) for g, w in zip(stream[17:], wanted[17:], strict=True)
        )
        assert unchanged(selector, whole.state_dict())


def test_a_saved_state_is_not_moved_by_the_stream():
    selector = oasis.Selector()
    before = copy.deepcopy(selector.state_dict())
    selector.select(batches(1)[0])
    assert not unchanged(selector, before)


def test_seed_decides_and_the_global_generator_does_not():
    stream = batches(30)
    picks = []
    for seed, outside in ((1, 0), (1, 123), (2, 0)):
        torch.manual_seed(outside)
        selector = oasis.Selector(seed=seed)
        before = torch.get_rng_state()
        picks.append(torch.cat([selector.select(g).mask for g in stream]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[0], picks[2])


def test_state_is_buffers_and_survives_a_cast():
    selector = oasis.Selector()
    for g in batches(5):
        selector.select(g)
    before = snapshot(selector)
    assert not list(selector.parameters())
    for cast in (selector.half, selector.bfloat16, selector.float, lambda: selector.to("cpu")):
        cast()
        assert unchanged(selector, before), "statistics were rounded"
    for name in ("mean", "variance", "threshold"):
        value = getattr(selector, name)
        assert value.dtype == torch.float64 and value.shape == ()
    for name in ("batches", "candidates", "selected"):
        value = getattr(selector, name)
        assert value.dtype == torch.int64 and value.shape == ()


@pytest.mark.parametrize("preset", PRESETS)
def test_ratio_one_selects_everything(preset):
    selector = oasis.Selector(1.0, preset=preset)
    for g in batches(30):
        assert selector.select(g).mask.all()


@pytest.mark.parametrize("ratio", [0.0625, 0.25, 0.5, 0.9])
def test_calibrated_meets_its_budget(ratio):
    selector = oasis.Selector(ratio, seed=2)
    g = torch.Generator().manual_seed(0)
    for step in range(1500):
        scores = torch.rand(16, generator=g, dtype=torch.float64).exp() * (1 + step / 500)
        selector.select(gram=torch.diag(scores))
    assert abs(float(selector.realised_ratio) / ratio - 1) < 0.02


def test_paper_and_released_keep_their_threshold():
    for preset in ("paper", "released"):
        selector = oasis.Selector(preset=preset)
        before = selector.threshold.clone()
        for g in batches(10):
            selector.select(g)
        assert selector.threshold == before


@pytest.mark.parametrize("preset", PRESETS)
def test_scaling_all_gradients_changes_no_probability(preset):
    # Squares of a power of two are exact, so every later bit must agree.
    small, large = oasis.Selector(preset=preset), oasis.Selector(preset=preset)
    for g in batches(30):
        a, b = small.select(g), large.select(g * 64)
        assert torch.equal(b.informativeness, a.informativeness * 4096)
        assert torch.equal(b.probability, a.probability)
        assert torch.equal(b.mask, a.mask)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 10), preset=st.sampled_from(PRESETS))
def test_permuting_samples_permutes_scores(seed, n, preset):
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, 15, generator=g, dtype=torch.float64)
    move = torch.randperm(n, generator=g)
    a = oasis.Selector(preset=preset).select(grads)
    b = oasis.Selector(preset=preset).select(grads[move])
    top = float(a.informativeness.max())
    assert_relative(b.adjusted, a.adjusted[move], 1e-9, floor=top)
    assert_relative(b.probability, a.probability[move], 1e-6)
    assert move[b.order].tolist() == a.order.tolist()


@pytest.mark.parametrize("preset", PRESETS)
def test_duplicates(preset):
    one = torch.randn(1, 30, generator=torch.Generator().manual_seed(1))
    for n in (2, 3, 6):
        got = oasis.Selector(preset=preset, siren="exact", stop=False).select(one.expand(n, 30))
        bound = 0.0 if n <= 3 else 1e-12 * got.informativeness[0]
        assert got.adjusted[1:].abs().max() <= bound
        assert got.adjusted[0] == got.informativeness[0]


@pytest.mark.parametrize("preset", PRESETS)
def test_one_sample_at_a_time(preset):
    selector = oasis.Selector(0.5, preset=preset)
    picked = sum(int(selector.select(g).mask.sum()) for g in batches(200, n=1))
    assert torch.isfinite(selector.statistics).all()
    assert 0 < picked < 200


@pytest.mark.parametrize("preset", PRESETS)
def test_zero_gradients_are_no_candidates(preset):
    selector, other = oasis.Selector(0.5, preset=preset), oasis.Selector(0.5, preset=preset)
    for g in batches(30):
        padded = torch.cat([g, torch.zeros(2, 20)])
        got, want = selector.select(padded), other.select(g)
        assert not got.mask[8:].any()
        for name in ("informativeness", "adjusted", "relative", "probability"):
            assert (getattr(got, name)[8:] == 0).all()
        assert_relative(got.relative[:8], want.relative, 1e-9, floor=1.0)
        other.counters.copy_(selector.counters)  # the draws count positions
        other.statistics.copy_(selector.statistics)
    assert selector.candidates == 240


@pytest.mark.parametrize("preset", PRESETS)
def test_a_batch_without_any_label(preset):
    selector = oasis.Selector(preset=preset)
    selector.select(batches(1)[0])
    before = selector.statistics.clone()
    got = selector.select(torch.zeros(4, 20))
    assert not got.mask.any() and got.indices.numel() == 0 and got.order.numel() == 0
    assert (got.informativeness == 0).all() and (got.probability == 0).all()
    assert torch.equal(selector.statistics, before)
    assert selector.candidates == 8 and selector.batches == 1


@pytest.mark.parametrize("preset", PRESETS)
def test_valid_leaves_samples_out(preset):
    selector, other = oasis.Selector(preset=preset), oasis.Selector(preset=preset)
    valid = torch.tensor([True] * 6 + [False] * 2)
    g = batches(1)[0]
    g[7] = math.nan
    got, want = selector.select(g, valid=valid), other.select(g[:6])
    assert_relative(got.relative[:6], want.relative, 1e-12, floor=1.0)
    assert not got.mask[6:].any() and selector.candidates == 6
    assert torch.equal(selector.mean, other.mean)


def test_select_without_a_selector():
    g = torch.randn(16, 50, generator=torch.Generator().manual_seed(0))
    got = oasis.select(g, ratio=0.5)
    assert same(got, oasis.select(g, ratio=0.5)), "nothing is remembered"
    assert same(got, oasis.Selector(0.5).select(g))
    again = oasis.select([g[:, :20].reshape(16, 4, 5), g[:, 20:]], ratio=0.5)
    assert torch.equal(again.mask, got.mask)
    assert oasis.select(g, ratio=1.0).mask.all()
    share = torch.stack([oasis.select(x, ratio=0.25).mask for x in batches(100, n=16)])
    assert 0.15 < share.double().mean() < 0.35


def test_select_with_a_selector_advances_it():
    selector, other = oasis.Selector(0.5), oasis.Selector(0.5)
    for g in batches(5):
        assert same(oasis.select(g, selector=selector), other.select(g))
    assert selector.batches == 5


def test_gradients_are_read_only():
    g = batches(1)[0].requires_grad_()
    before = g.detach().clone()
    got = oasis.Selector().select(g)
    assert torch.equal(g.detach(), before) and not got.relative.requires_grad
