"""`oasis` with a memory of what was selected; its picks are `oasis.Selector`'s (tests/core)."""

import pytest
import torch
from policy_signals import signals

import oasis
from oasis import policies


def test_without_a_memory_no_sketch_is_asked_for():
    assert "sketch" not in policies.create("oasis").needs
    assert policies.create("oasis", remember=8).needs == {"gram", "sketch"}
    selector = oasis.Selector(0.25, remember=8)
    assert policies.Oasis(selector=selector).needs == {"gram", "sketch"}


@pytest.mark.parametrize("metric", ["fisher", "loss"])
def test_it_remembers_as_the_selector_does(metric):
    options = {"remember": 8, "memory_ridge": 0.3}
    policy = policies.create("oasis", 0.25, 5, metric=metric, **options)
    forgetful = policies.create("oasis", 0.25, 5, metric=metric)
    selector = oasis.Selector(0.25, seed=5, nonfinite="skip", **options)
    differs = 0
    for step in range(12):
        batch = signals(16, step, masked=[3])
        scores = None if metric == "fisher" else batch.loss
        given = {"valid": batch.tokens > 0, "scores": scores, "sketch": batch.sketch}
        want = selector.select(gram=batch.gram, **given)
        got = policy.observe(batch)
        assert torch.equal(got.mask, want.mask) and torch.equal(got.adjusted, want.adjusted)
        differs += not torch.equal(forgetful.observe(batch).adjusted, got.adjusted)
    assert differs >= 10


@pytest.mark.parametrize("remember", [0, 8])
def test_by_the_norm_of_a_token_it_selects_from_gradients_longer_by_the_root_of_the_tokens(
    remember,
):
    """Means over n tokens, times the root of n: as if c_t were 1 / sqrt(n) (docs/method.md 1)."""
    policy = policies.create("oasis", 0.25, 5, metric="token_fisher", remember=remember)
    by_norm = policies.create("oasis", 0.25, 5, remember=remember)
    selector = oasis.Selector(0.25, seed=5, nonfinite="skip", remember=remember)
    assert policy.needs == by_norm.needs
    differs = 0
    for step in range(12):
        grads = torch.randn(16, 40, generator=torch.Generator().manual_seed(step)).double()
        tokens = torch.randint(0, 30, (16,), generator=torch.Generator().manual_seed(step))
        grads[tokens == 0] = 0  # as there is nothing to learn
        batch = policies.Signals(16, gram=grads @ grads.T, sketch=grads, tokens=tokens)
        longer = grads * tokens.double().sqrt()[:, None]
        given = {"valid": tokens > 0, "sketch": longer if remember else None}
        want = selector.select(gram=longer @ longer.T, **given)
        got = policy.observe(batch)
        assert torch.equal(got.mask, want.mask)
        torch.testing.assert_close(got.adjusted, want.adjusted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.informativeness, grads.square().sum(1) * tokens)
        differs += not torch.equal(by_norm.observe(batch).mask, got.mask)
    assert differs >= 6


def test_a_memory_resumes_the_stream(tmp_path):
    whole, stopped = (policies.create("oasis", 0.3, seed=5, remember=8) for _ in range(2))
    picks = [whole.observe(signals(16, seed)) for seed in range(20)]
    for seed in range(9):
        stopped.observe(signals(16, seed))
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    fresh = policies.create("oasis", 0.3, seed=99, remember=8)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in range(9, 20):
        got = fresh.observe(signals(16, seed))
        assert torch.equal(got.mask, picks[seed].mask)
        assert torch.equal(got.adjusted, picks[seed].adjusted)


def test_a_missing_sketch_is_named_and_changes_nothing():
    policy, untouched = (policies.create("oasis", 0.5, seed=8, remember=4) for _ in range(2))
    batch = signals(12)
    batch.sketch = None
    with pytest.raises(ValueError, match=r"signals\.sketch: got None, the policy 'oasis' needs it"):
        policy.observe(batch)
    for step in range(3):
        masks = [p.observe(signals(12, step)).mask for p in (policy, untouched)]
        assert torch.equal(*masks)
