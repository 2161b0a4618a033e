"""Vanilla top-k, and the measures it may rank by."""

import pytest
import torch

from oasis import policies
from oasis.policies import Signals


def batch():
    return Signals(
        4,
        gram=torch.diag(torch.tensor([1.0, 9.0, 4.0, 9.0])),
        loss=torch.tensor([0.5, 0.1, 2.0, 0.7]),
        entropy=torch.tensor([0.1, 0.2, 0.3, 0.4]),
        el2n=torch.tensor([0.9, 0.1, 0.2, 0.3]),
        tokens=torch.tensor([1, 2, 8, 1]),
    )


# By hand: half of 4 is 2. Squared norms 1, 9, 4, 9: samples 1 and 3, tied, so 1 comes first. Times
# the tokens they are 1, 18, 32, 9.
@pytest.mark.parametrize(
    "metric, order",
    [
        ("fisher", [1, 3]),
        ("token_fisher", [2, 1]),
        ("loss", [2, 3]),
        ("perplexity", [2, 3]),
        ("entropy", [3, 2]),
        ("el2n", [0, 3]),
    ],
)
def test_takes_the_top_of_each_measure(metric, order):
    policy = policies.create("vanilla", 0.5, metric=metric)
    assert len(policy.needs) == 1
    selection = policy.observe(batch())
    assert selection.order.tolist() == order
    assert selection.indices.tolist() == sorted(order) and selection.weight is None


def test_what_counts_as_informative_is_reported():
    scores = policies.create("vanilla", metric="perplexity").observe(batch()).informativeness
    assert torch.allclose(scores, torch.tensor([0.5, 0.1, 2.0, 0.7], dtype=torch.float64).exp())


def test_bad_metric():
    with pytest.raises(ValueError, match="metric: got 'gradient', expected one of fisher"):
        policies.create("vanilla", metric="gradient")
