"""DivBS on a Gram matrix against the literal rule on gradients."""

import pytest
import torch

from oasis import policies
from oasis.policies import Signals
from oasis.policies.divbs import representatives


def batch(grads):
    grads = torch.as_tensor(grads, dtype=torch.float64)
    return Signals(len(grads), gram=grads @ grads.T, tokens=torch.ones(len(grads)).long())


def literal(grads, count):
    """Greedy picks by vectors: residual of the sum, Gram-Schmidt with every pick."""
    residual, basis, picks = grads.sum(dim=0), [], []
    for _ in range(count):
        strengths = [
            -1.0 if i in picks else abs(float(grads[i] @ residual)) for i in range(len(grads))
        ]
        a = max(range(len(grads)), key=strengths.__getitem__)
        picks.append(a)
        vector = grads[a].clone()
        for e in basis:
            vector = vector - (vector @ e) * e
        e = vector / vector.norm()
        basis.append(e)
        residual = residual - (residual @ e) * e
    return picks


def test_hand_worked():
    # g = (3,0), (2.9,0), (0,1), (1,-0.5) has the sum (6.9, 0.5). Inner products with it: 20.7,
    # 20.01, 0.5, 6.65: sample 0. Left of the sum: (0, 0.5), inner products 0, 0, 0.5, -0.25:
    # sample 2 (by informativeness alone it would be 0's near copy, sample 1).
    grads = [(3, 0), (2.9, 0), (0, 1), (1, -0.5)]
    selection = policies.create("divbs", 0.5).observe(batch(grads))
    assert selection.order.tolist() == [0, 2]
    vanilla = policies.create("vanilla", 0.5).observe(batch(grads))
    assert vanilla.order.tolist() == [0, 1]


@pytest.mark.parametrize("n, width", [(5, 40), (16, 200), (16, 12), (24, 24)])
def test_equals_the_literal_rule(n, width):
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        common = torch.randn(width, generator=g, dtype=torch.float64)
        grads = torch.randn(n, width, generator=g, dtype=torch.float64) + 0.3 * common
        count = min(n, width) // 2
        picks = representatives(grads @ grads.T, count, torch.arange(n))
        assert picks == literal(grads, count)


def test_what_is_left_when_the_sum_is_spanned_comes_at_random():
    # The sum is (3, 0, 0, 0): after sample 0 nothing is left of it, and the others, of which one
    # has a zero gradient, fill up at random.
    grads = torch.zeros(5, 4, dtype=torch.float64)
    grads[0, 0], grads[1, 0] = 2.0, 1.0
    grads[2, 1], grads[3, 1] = 1.0, -1.0
    policy, others = policies.create("divbs", 0.6, seed=1), set()
    for _ in range(60):
        order = policy.observe(batch(grads)).order.tolist()
        assert order[0] == 0 and len(set(order)) == 3
        others.update(order[1:])
    assert others == {1, 2, 3, 4}


def test_a_copy_adds_nothing():
    g = torch.Generator().manual_seed(3)
    grads = torch.randn(6, 30, generator=g, dtype=torch.float64) + 1
    grads[1] = grads[0]
    order = policies.create("divbs", 5 / 6).observe(batch(grads)).order.tolist()
    assert len({0, 1} & set(order)) == 1


def test_scale_does_not_matter():
    g = torch.Generator().manual_seed(4)
    grads = torch.randn(8, 30, generator=g, dtype=torch.float64) + 0.5
    orders = [
        policies.create("divbs", 0.5).observe(batch(grads * scale)).order.tolist()
        for scale in (1e-8, 1.0, 1e8)
    ]
    assert orders[0] == orders[1] == orders[2]
