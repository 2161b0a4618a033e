"""bench/redundancy.py: rules for a given H, and what is made of the probes."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from comparing import assert_relative

import oasis
from bench import probe, redundancy, redundancy_rules


def gradients(n=9, p=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, p, generator=g, dtype=torch.float64)
    grads[5] = 0.9 * grads[1] + 0.1 * grads[5]
    grads[6] = -grads[2]
    grads[7] = 0
    return grads.numpy()


def test_rules_for_a_given_h_against_the_gradients_themselves():
    grads, picked = gradients(), [1, 6, 3, 2]
    gram = grads @ grads.T
    raw = (grads**2).sum(1)

    def cosine(a, b):
        # 2 and 6 cancel: the mean is the zero vector, up to rounding.
        length = np.linalg.norm(a) * np.linalg.norm(b)
        return a @ b / length if length > 1e-12 else 0.0

    for i in range(len(grads)):
        exact = raw[i]
        for size in range(1, 5):
            for u in map(list, combinations(picked, size)):
                mean = grads[u].mean(0)
                exact += (-1) ** size * cosine(grads[i], mean) * raw[u].mean()
        assert redundancy_rules.left_by("exact", gram, picked)[i] == pytest.approx(exact, rel=1e-9)
        pairwise = raw[i] - sum(cosine(grads[i], grads[h]) * raw[h] for h in picked)
        got = redundancy_rules.left_by("pairwise", gram, picked)[i]
        assert got == pytest.approx(pairwise, rel=1e-9)
        basis = np.linalg.svd(grads[picked].T, full_matrices=False)[0][:, :3]  # rank 3: 6 is -2
        outside = grads[i] - basis @ (basis.T @ grads[i])
        got = redundancy_rules.left_by("residual 0", gram, picked)[i]
        assert got == pytest.approx(outside @ outside, rel=1e-9, abs=1e-9 * raw.max())
    assert redundancy_rules.left_by("none", gram, picked).tolist() == gram.diagonal().tolist()


@pytest.mark.parametrize("rule", [r for r in redundancy_rules.RULES if r[:3] not in ("fit", "ste")])
def test_the_next_pick_of_siren_has_the_same_score(rule):
    grads = gradients(seed=4)
    grads[7] = grads[0] + 0.2 * grads[8]
    gram = torch.as_tensor(grads @ grads.T)
    gram = (gram + gram.T) / 2
    method, _, ridge = rule.partition(" ")
    result = oasis.siren(gram, method=method, ridge=float(ridge or 0))
    order = result.order.tolist()
    for size in (1, 2, 4):
        left = redundancy_rules.left_by(rule, gram.numpy(), order[:size])
        assert_relative(left[order[size]], result.adjusted[order[size]], 1e-9, floor=1e-3)
        assert left[order[size]] >= left[order[size:]].max() - 1e-9


def test_fit_and_step_follow_a_linear_model():
    # Features of equal norm, squared error: g_i = r_i f_i, and I' is known exactly.
    g = torch.Generator().manual_seed(2)
    f = torch.nn.functional.normalize(torch.randn(7, 10, generator=g).double(), dim=1).numpy()
    r = torch.randn(7, generator=g).double().numpy()
    gram = np.outer(r, r) * (f @ f.T)
    picked = [0, 3, 4]
    ridge = 0.3
    # Ridge regression whose penalty on sample h is lambda / r_h^2: that of the ridge in K.
    penalty = np.diag(ridge * np.diag(gram).mean() / r[picked] ** 2)
    inner = f[picked] @ f[picked].T
    for name, left in (
        ("fit 0", r - f @ f[picked].T @ np.linalg.solve(inner, r[picked])),
        ("fit 0.3", r - f @ f[picked].T @ np.linalg.solve(inner + penalty, r[picked])),
        ("step 0.3", r - 0.3 * f @ (r[picked] @ f[picked]) / 3),
    ):
        got = redundancy_rules.left_by(name, gram, picked)
        np.testing.assert_allclose(got, left**2, rtol=1e-9, atol=1e-15)


# ---- what is made of it ----


def made_up(learnt) -> probe.Probes:
    """Probes of random Gram matrices whose I' is what `learnt(gram, picked)` says."""
    g = np.random.default_rng(0)
    count = 12
    grads = g.standard_normal((count, 10, 6))
    gram = grads @ grads.transpose(0, 2, 1)
    picked = np.stack([g.choice(10, 4, replace=False) for _ in range(count)])
    after = np.stack([[learnt(k, h.tolist())] * 2 for k, h in zip(gram, picked, strict=True)])
    twins = np.zeros((count, 10), dtype=bool)
    drift = np.stack([[k.diagonal()] * 2 for k in gram])
    phase = np.repeat([0, 1, 2], 4)
    return probe.Probes(phase, np.zeros(count, int), picked, twins, gram, after, drift)


@pytest.mark.parametrize("truth", ["residual 0.1", "exact", "fit 0.3"])
def test_the_rule_that_is_right_wins(truth):
    probes = made_up(lambda gram, picked: redundancy_rules.left_by(truth, gram, picked))
    entries = redundancy.summary(redundancy.compare(probes))
    of = {(e["phase"], e["rule"], e["measure"]): e for e in entries if e["steps"] == 1}
    for measure in ("left", "change", "net"):
        assert of["all", truth, measure]["mean"] == pytest.approx(1.0)
        assert of["all", truth, measure]["batches"] == 12
        assert of["early", truth, measure]["batches"] == 4
        others = [e["mean"] for k, e in of.items() if k[2] == measure and k[1] != truth]
        assert max(others) < 1
    assert ("all", "none", "left") in of and ("all", "none", "change") not in of
    text = redundancy.tables(probes, entries)
    assert f"| {truth} | 1.00 +- 0.00 |" in text and "| none | - |" in text


def test_mean_and_standard_error():
    mean, error, count = redundancy.mean_and_error([1.0, math.nan, 2.0, 3.0, 6.0])
    assert (mean, count) == (3.0, 4)
    assert error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert redundancy.mean_and_error([0.5])[0::2] == (0.5, 1)
    assert math.isnan(redundancy.mean_and_error([math.nan])[0])


def test_measured_batches_are_spread_over_the_thirds():
    assert redundancy.phases(9, 2) == {0: 0, 2: 0, 3: 1, 5: 1, 6: 2, 8: 2}
    assert redundancy.phases(5, 100) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    chosen = redundancy.phases(1000, 120)
    assert len(chosen) == 360 and [list(chosen.values()).count(p) for p in range(3)] == [120] * 3
