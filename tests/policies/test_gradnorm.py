"""Gradient-norm sampling: the probabilities, and what its weights make unbiased."""

import pytest
import torch

from oasis import policies
from oasis.policies import Signals


def diagonal(*norms):
    norms = torch.tensor(norms, dtype=torch.float64)
    return Signals(len(norms), gram=torch.diag(norms**2), tokens=torch.ones(len(norms)).long())


def test_pairs_come_as_often_as_successive_sampling_says():
    # Norms 3, 2, 1, two of three, one after the other in proportion to what is left:
    # {0, 1}: 3/6 * 2/3 + 2/6 * 3/4 = 7/12;  {0, 2}: 3/6 * 1/3 + 1/6 * 3/5 = 4/15;
    # {1, 2}: 2/6 * 1/4 + 1/6 * 2/5 = 3/20. (Squared norms 9, 4, 1 would give 0.837, 0.133, 0.030.)
    policy, batch, draws = policies.create("gradnorm", 2 / 3, seed=3), diagonal(3, 2, 1), 2000
    seen = [tuple(policy.observe(batch).indices.tolist()) for _ in range(draws)]
    for pair, share in {(0, 1): 7 / 12, (0, 2): 4 / 15, (1, 2): 3 / 20}.items():
        deviation = (share * (1 - share) / draws) ** 0.5
        assert abs(seen.count(pair) / draws - share) < 4.5 * deviation


def test_a_single_draw_is_the_originals():
    # With one draw there is nothing to replace: p = norm / sum, 3/6, 2/6, 1/6, as the authors draw.
    policy, batch, draws = policies.create("gradnorm", 1 / 3, seed=4), diagonal(3, 2, 1), 1500
    counts = sum(policy.observe(batch).mask.int() for _ in range(draws))
    for count, p in zip(counts.tolist(), (1 / 2, 1 / 3, 1 / 6), strict=True):
        assert abs(count / draws - p) < 4.5 * (p * (1 - p) / draws) ** 0.5


def test_unbiased_weights_estimate_the_mean_gradient():
    g = torch.Generator().manual_seed(0)
    grads = torch.randn(6, 3, generator=g, dtype=torch.float64)
    grads *= torch.tensor([4.0, 3, 2, 1, 1, 0.5], dtype=torch.float64).unsqueeze(1)
    batch = Signals(6, gram=grads @ grads.T, tokens=torch.ones(6).long())
    policy = policies.create("gradnorm", 0.5, seed=1, unbiased=True)
    chosen = [policy.observe(batch) for _ in range(2500)]
    mask = torch.stack([s.mask for s in chosen]).double()
    weight = torch.stack([s.weight for s in chosen]).double()
    assert (mask.sum(dim=1) == 3).all() and (weight[mask == 0] == 0).all()
    mean = grads.mean(dim=0)
    for factors, unbiased in ((weight, True), (mask, False)):
        estimates = factors @ grads / 3
        error = (estimates.mean(dim=0) - mean) / (estimates.std(dim=0) / 2500**0.5)
        assert (error.abs().max() < 4.5) == unbiased, error
    # The weights of each sample alone: E[weight] = k / n, whatever its norm.
    error = (weight.mean(dim=0) - 0.5) / (weight.std(dim=0) / 2500**0.5)
    assert error.abs().max() < 4.5


def test_weights_change_nothing_about_who_is_selected():
    plain, weighed = (policies.create("gradnorm", 0.4, seed=9, unbiased=u) for u in (False, True))
    batch = diagonal(1, 2, 3, 4, 5)
    for _ in range(20):
        a, b = plain.observe(batch), weighed.observe(batch)
        assert torch.equal(a.mask, b.mask) and a.weight is None
    everything = policies.create("gradnorm", 1.0, unbiased=True).observe(batch)
    assert torch.equal(everything.weight, torch.ones(5))


def test_zero_gradients_come_last_and_uniformly():
    policy = policies.create("gradnorm", 0.5, seed=2, unbiased=True)
    chosen = [policy.observe(diagonal(0, 0, 0, 1e-9)) for _ in range(400)]
    counts = sum(s.mask.int() for s in chosen)
    assert counts[3] == 400 and counts[:3].min() > 133 - 5 * 10  # standard deviation 9.4
    assert all(s.weight.isfinite().all() for s in chosen)
    nothing = sum(policy.observe(diagonal(0, 0)).mask.int() for _ in range(400))
    assert nothing.sum() == 400 and nothing.min() > 200 - 50


def test_bad_option():
    with pytest.raises(TypeError, match="unbiased"):
        policies.create("gradnorm", unbiased=1)
