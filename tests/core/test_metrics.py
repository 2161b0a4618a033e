"""Other measures of informativeness: SIREN with scores that are not squared norms."""

from itertools import combinations

import pytest
import torch

import oasis
from oasis import operators, policies
from oasis.names import RULES
from oasis.policies import Signals


def case(n, width, seed):
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, width, generator=g, dtype=torch.float64)
    grads += torch.randn(width, generator=g, dtype=torch.float64)
    return grads, torch.rand(n, generator=g, dtype=torch.float64) * 3 + 0.1


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def literal(grads, scores, largest_subset):
    """Scores at the pick and order, by enumerating the subsets of what is picked."""
    picked, adjusted = [], torch.zeros(len(grads), dtype=torch.float64)
    while len(picked) < len(grads):
        values = {}
        for i in range(len(grads)):
            if i in picked:
                continue
            value = float(scores[i])
            for size in range(1, min(len(picked), largest_subset) + 1):
                for subset in map(list, combinations(picked, size)):
                    overlap = cosine(grads[i], grads[subset].mean(dim=0))
                    value += (-1) ** size * overlap * float(scores[subset].mean())
            values[i] = value
        best = max(values, key=values.get)
        adjusted[best] = values[best]
        picked.append(best)
    return adjusted, picked


def siren(grads, scores, method, ridge=0.0):
    gram, n = grads @ grads.T, len(grads)
    floor = torch.tensor(-torch.inf, dtype=torch.float64)
    return operators.siren(gram, torch.ones(n, dtype=torch.bool), floor, method, ridge, scores)


@pytest.mark.parametrize("method, largest", [("exact", 99), ("pairwise", 1), ("none", 0)])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_siren_with_scores_is_the_literal_rule(method, largest, scale):
    for n in (1, 2, 7):
        grads, scores = case(n, 5, seed=n)
        expected, order = literal(grads, scores, largest)
        adjusted, picks = siren(grads * scale, scores / scale, method)
        assert picks.tolist() == order
        assert torch.allclose(adjusted * scale, expected, rtol=1e-10, atol=1e-12)


def test_hand_worked():
    # Cosine 0.6 between samples 0 and 1, sample 2 orthogonal to both; scores 2, 3, 1. Sample 1
    # first, with 3. Then 0: 2 - 0.6 * 3 = 0.2 and 2: 1, so 2. Last 0: the first sum is unchanged,
    # and of {1, 2}: +cos(g_0, g_1 + g_2) * 2. With norms 5, 1, 1: cos = 0.6 / sqrt(2).
    grads = torch.tensor([[3.0, 4, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    scores = torch.tensor([2.0, 3, 1], dtype=torch.float64)
    adjusted, order = siren(grads, scores, "exact")
    assert order.tolist() == [1, 2, 0]
    assert adjusted.tolist() == pytest.approx([0.2 + 2 * 0.6 / 2**0.5, 3, 1])
    # "residual": the share of a gradient outside the picks' span: 1 - 0.36 of sample 0.
    adjusted, order = siren(grads, scores, "residual")
    assert order.tolist() == [1, 0, 2]
    assert adjusted.tolist() == pytest.approx([2 * 0.64, 3, 1])


@pytest.mark.parametrize("method", RULES)
def test_the_diagonal_as_scores_changes_no_bit(method):
    grads, _ = case(12, 30, seed=3)
    gram = grads @ grads.T
    for a, b in zip(siren(grads, None, method), siren(grads, gram.diagonal(), method), strict=True):
        close = torch.equal(a, b) if method != "residual" else torch.allclose(a, b, rtol=1e-12)
        assert close


def test_mean_field_is_linear_in_the_scores_and_near_exact():
    g = torch.Generator().manual_seed(5)
    grads = torch.randn(12, 200, generator=g, dtype=torch.float64)
    scores = torch.rand(12, generator=g, dtype=torch.float64) + 0.5
    exact, order = siren(grads, scores, "exact")
    adjusted, picks = siren(grads, scores, "mean_field")
    assert torch.allclose(adjusted, exact, atol=0.05 * float(scores.mean()))
    doubled, same = siren(grads, 2 * scores, "mean_field")
    assert torch.equal(same, picks) and torch.allclose(doubled, 2 * adjusted, rtol=1e-12)


@pytest.mark.parametrize("metric", ["loss", "perplexity", "entropy", "el2n"])
def test_oasis_with_a_metric_is_the_selector_with_those_scores(metric):
    policy = policies.create("oasis", 0.4, seed=2, metric=metric, siren="exact")
    selector = oasis.Selector(0.4, seed=2, nonfinite="skip", siren="exact")
    plain = policies.create("oasis", 0.4, seed=2, siren="exact")
    signal = "loss" if metric == "perplexity" else metric
    assert policy.needs == {"gram", signal} and plain.needs == {"gram"}
    differs = False
    for seed in range(5):
        grads, scores = case(10, 20, seed)
        batch = Signals(10, gram=grads @ grads.T, tokens=torch.ones(10).long())
        setattr(batch, signal, scores)
        expected = scores.exp() if metric == "perplexity" else scores
        a, b = policy.observe(batch), selector.select(gram=batch.gram, scores=expected)
        assert torch.equal(a.mask, b.mask) and torch.equal(a.informativeness, expected)
        adjusted, order = siren(grads, expected, "exact")
        assert torch.equal(a.adjusted, adjusted) and torch.equal(a.order, order)
        differs |= not torch.equal(a.mask, plain.observe(batch).mask)
    assert differs
    assert float(selector.mean) == policy.statistics()["mean"] > 0


def test_samples_without_a_score_or_a_gradient_are_left_out():
    grads, scores = case(6, 10, seed=1)
    grads[1] = 0
    scores[2], scores[3] = 0, float("nan")
    selector = oasis.Selector(1.0, nonfinite="skip")
    selection = selector.select(grads, scores=scores)
    assert selection.indices.tolist() == [0, 4, 5] and selection.skipped.tolist()[3]
    assert selection.informativeness[[1, 2, 3]].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"samples \[3\]"):
        oasis.Selector(1.0).select(grads, scores=scores)


@pytest.mark.parametrize(
    "scores", [[1.0] * 4, torch.ones(4), torch.ones(3).double(), -torch.ones(4).double()]
)
def test_bad_scores_change_nothing(scores):
    grads, _ = case(4, 10, seed=1)
    selector = oasis.Selector(0.5)
    with pytest.raises((TypeError, ValueError), match="scores: got"):
        selector.select(grads, scores=scores)
    assert int(selector.batches) == 0


def test_bad_metric():
    with pytest.raises(ValueError, match="metric: got 'norm', expected one of fisher"):
        policies.create("oasis", metric="norm")
