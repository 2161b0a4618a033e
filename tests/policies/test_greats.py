"""GREATS: hand-worked greedy picks, and no validation rows."""

import pytest
import torch

from oasis import policies
from oasis.policies import Signals


def batch(grads, validation=None):
    grads = torch.as_tensor(grads, dtype=torch.float64)
    rows = None
    if validation is not None:
        rows = grads @ torch.as_tensor(validation, dtype=torch.float64).T
    gram, tokens = grads @ grads.T, torch.ones(len(grads)).long()
    return Signals(len(grads), gram=gram, tokens=tokens, validation_gram=rows)


GRADS = [(2, 0), (1.9, 0), (0, 1), (-3, 0)]
ROWS = [(2, 1), (0, 1)]  # mean (1, 1)


def test_hand_worked():
    # <g, g_val> = 2, 1.9, 1, -3. lr = 1/k = 1/2: first 1, 0.95, 0.5, -1.5, so sample 0. Then
    # less <g_i, g_0> / 4 = 1, 0.95, 0, -1.5: left 0, 0.5, 0: sample 2 (plain alignment: sample 1).
    assert policies.create("greats", 0.5).observe(batch(GRADS, ROWS)).order.tolist() == [0, 2]
    # lr = 0.1: 0.2, 0.19, 0.1, -0.3; then less 0.04, 0.038, 0, -0.06: 0.152 beats 0.1.
    small = policies.create("greats", 0.5, learning_rate=0.1)
    assert small.observe(batch(GRADS, ROWS)).order.tolist() == [0, 1]
    # lr = 1: 2, 1.9, 1, -3, then less 4, 3.8, 0, -6: left -1.9, 1, 3: sample 3, as it undoes 0.
    large = policies.create("greats", 0.5, learning_rate=1)
    assert large.observe(batch(GRADS, ROWS)).order.tolist() == [0, 3]


@pytest.mark.parametrize("rate", [0.05, 0.5, None])
def test_each_pick_is_the_best_step_of_the_quadratic_model(rate):
    # The second term is the gain in U(S) = lr <G, g_val> - lr^2 |G|^2 / 2, G the sum over S, up to
    # each sample's own square, which the original leaves out: add it back and compare.
    g = torch.Generator().manual_seed(1)
    grads = torch.randn(9, 20, generator=g, dtype=torch.float64)
    rows = torch.randn(3, 20, generator=g, dtype=torch.float64)
    order = policies.create("greats", 4 / 9, learning_rate=rate).observe(batch(grads, rows)).order
    lr, target = rate or 1 / 4, rows.mean(dim=0)

    def utility(picks):
        total = grads[picks].sum(dim=0)
        return lr * total @ target - lr**2 * total @ total / 2

    picks: list[int] = []
    for a in order.tolist():
        gains = {
            i: float(utility([*picks, i]) - utility(picks) + lr**2 * grads[i] @ grads[i] / 2)
            for i in range(9)
            if i not in picks
        }
        assert a == max(gains, key=gains.get)
        picks.append(a)


def test_without_validation_rows_it_is_uniform():
    policy = policies.create("greats", 0.25, seed=3)
    nan = batch(GRADS, [(float("nan"), 1)])
    counts = sum(policy.observe(b).mask.int() for _ in range(400) for b in (batch(GRADS), nan))
    assert counts.sum() == 800 and (counts - 200).abs().max() < 5 * 12.3


def test_a_validation_row_that_is_not_finite_is_left_out():
    rows = [*ROWS, (float("inf"), 0)]
    assert policies.create("greats", 0.5).observe(batch(GRADS, rows)).order.tolist() == [0, 2]


def test_bad_options_and_signals():
    with pytest.raises(ValueError, match="learning_rate"):
        policies.create("greats", learning_rate=0)
    with pytest.raises(ValueError, match="validation: got 0"):
        policies.create("greats", validation=0)
    wrong = batch(GRADS, ROWS)
    wrong.validation_gram = wrong.validation_gram[:3]
    policy = policies.create("greats")
    with pytest.raises(ValueError, match=r"validation_gram: got shape \[3, 2\]"):
        policy.observe(wrong)
    assert policy.budget.candidates == 0
