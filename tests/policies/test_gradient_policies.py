"""The policies that cluster gradients, on examples worked out by hand."""

import math

import pytest
import torch
from policy_signals import batch, order

from oasis import policies
from oasis.policies.adapt_inf import histogram_entropy, strata

# ---- tive ----


def gradients(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_tive_by_hand():
    policy = policies.create("tive", 0.6, temperature=0)
    # Task 0: norms 2, 2, 2; cosines with the others (0 + 0) / 2, (0 + 1) / 2, (0 + 1) / 2.
    # Task 1: norms 1, 1; cosines -1, -1. Difficulties 2 and 1: of three slots two and one.
    grads = gradients([0, 2], [2, 0], [2, 0], [1, 0], [-1, 0])
    task = torch.tensor([0, 0, 0, 1, 1])
    assert order(policy, batch(full_grads=grads, task=task)) == [1, 2, 3]
    # Without tasks and before pseudo-tasks all is one: mean cosines (0, 1 + 1 - 1, ..., -3) / 4.
    policy = policies.create("tive", 0.6, temperature=0)
    assert order(policy, batch(full_grads=grads)) == [1, 2, 3]
    policy = policies.create("tive", 0.6, temperature=0, tasks=False)
    flipped = gradients([1, 0], [-1, 0], [2, 0], [0, 2], [-1, 0])
    # Sums of cosines with the other four: 1: 0 - 1 - 1 + 1, -1: -1 - 1 + 1, 0.
    assert order(policy, batch(full_grads=flipped, task=task)) == [3, 0, 1]


def test_tive_ranks_as_the_mean_with_itself_does():
    # The authors' code takes the mean over the whole task, the sample's own cosine of 1 included:
    # of 0, 0 and 90 degrees 2/3, 2/3, 1/3. Without it, (3 x - 1) / 2: 1/2, 1/2, 0, in that order.
    policy = policies.create("tive", 1 / 3, temperature=0)
    grads, task = gradients([1, 0], [4, 0], [0, 1]), torch.zeros(3, dtype=torch.int64)
    assert order(policy, batch(full_grads=grads, task=task)) == [0]
    difficulty, influence = policy._values(task, 3)
    assert influence.tolist() == [0.5, 0.5, 0] and difficulty.tolist() == [2]


def test_tive_keeps_rows_of_no_task_apart():
    """Off-task rows (-1) of huge gradients are a group of their own, not part of the first task."""
    grads = gradients([1, 0], [1, 0], [0, 1], [0, 1], [-9, 0], [-9, 0])
    task = torch.tensor([0, 0, 1, 1, -1, -1])
    policy = policies.create("tive", 0.5, temperature=0)
    policy.observe(batch(full_grads=grads, task=task))
    difficulty, influence = policy._values(policy.pool["task"] + 1, 6)
    assert difficulty.tolist() == [9, 1, 1]
    assert influence.tolist() == [1] * 6  # the cosine with the other one of the task


def test_tive_samples_by_a_softmax_of_influence():
    policy = policies.create("tive", 1 / 3, seed=5, temperature=0.5, pool=3)
    signals = batch(full_grads=gradients([1, 0], [1, 0], [0, 1]), task=torch.zeros(3).long())
    counts = sum(policy.observe(signals).mask.int() for _ in range(1500)).tolist()
    # Influences 0.5, 0.5, 0: weights e, e, 1.
    expected = [1500 * w / (2 * math.e + 1) for w in (math.e, math.e, 1)]
    for count, mean in zip(counts, expected, strict=True):
        assert abs(count - mean) < 4.5 * math.sqrt(mean * (1 - mean / 1500))


def test_tive_samples_nearly_evenly_by_default():
    # The authors' q = 0.001: influences 0.5, 0.5, 0 weigh exp(0.0005), exp(0.0005), 1, so the third
    # is 1 / (2 x 1.0005 + 1) = 0.33322 of the picks. (Of 1/q = 0.1 it would be 1 of 298.)
    policy = policies.create("tive", 1 / 3, seed=5, pool=3)
    assert policy.temperature == 1000
    signals = batch(full_grads=gradients([1, 0], [1, 0], [0, 1]), task=torch.zeros(3).long())
    counts = sum(policy.observe(signals).mask.int() for _ in range(1500)).tolist()
    for count, share in zip(counts, (0.33339, 0.33339, 0.33322), strict=True):
        assert abs(count - 1500 * share) < 4.5 * math.sqrt(1500 * share * (1 - share))


def test_tive_pseudo_tasks_get_shares_by_difficulty():
    policy = policies.create("tive", 0.25, clusters=2, warmup=16, temperature=0, pool=64)
    g = torch.Generator().manual_seed(3)
    hard = torch.zeros(2, dtype=torch.int64)
    for step in range(60):
        grads = 0.1 * torch.randn(16, 4, generator=g)
        grads[:8, 0] += 3  # norms about 3, and about 1
        grads[8:, 1] += 1
        mask = policy.observe(batch(full_grads=grads)).mask
        if step >= 2:
            hard += torch.stack([mask[:8].sum(), mask[8:].sum()])
    assert hard.sum() == 4 * 58
    assert float(hard[0] / hard.sum()) == pytest.approx(0.75, abs=0.03)


# ---- adapt_inf ----


def test_histogram_entropy_by_hand():
    assert histogram_entropy(torch.tensor([0.0, 0, 1, 1]).double()) == pytest.approx(1)  # two bins
    assert histogram_entropy(torch.tensor([0.0, 1, 2, 3]).double()) == pytest.approx(2)
    # z = -1/3 nine times and 3: two bins, of 0.9 and 0.1.
    expected = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert histogram_entropy(torch.tensor([0.0] * 9 + [1]).double()) == pytest.approx(expected)
    assert histogram_entropy(torch.full((7,), 2.5).double()) == 0
    assert histogram_entropy(torch.zeros(7).double()) == 0


def test_histogram_entropy_knows_no_unit():
    # The authors' bins for the standardised scores end at 4 x the deviation of the raw ones: here,
    # of z = -1/3 and 3, they hold both at a deviation of 1 (unit 10/3) and -1/3 alone at 0.3.
    scores = torch.tensor([0.0] * 9 + [1]).double()
    for unit in (0.1, 10 / 3, 100):
        assert histogram_entropy(unit * scores) == pytest.approx(histogram_entropy(scores))


def test_strata_by_hand():
    # 0 to 99 without the 5 % at either end is 5 to 94, in parts of 1.78; 50 is 25.3 parts up.
    reference = torch.arange(100).double()
    scores = torch.tensor([4.0, 5, 50, 94, 95]).double()
    assert strata(scores, reference, 0.05).tolist() == [-1, 0, 25, 49, -1]
    assert strata(torch.ones(3).double(), torch.ones(3).double(), 0.05).tolist() == [0, 0, 0]


def adapt(loss, el2n, n=10):
    return batch(
        middle_grads=torch.ones(n, 4),
        loss=torch.tensor(loss, dtype=torch.float64),
        entropy=torch.ones(n),
        el2n=torch.tensor(el2n, dtype=torch.float64),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("swap", [False, True])
def test_adapt_inf_covers_the_range_of_the_scorer_that_tells_most(seed, swap):
    policy = policies.create("adapt_inf", 0.5, seed, clusters=1, tail=0)
    flat, spread = [0.0] * 9 + [1], [float(i) for i in range(10)]
    # Entropies log2(10) against 0.47: `spread` is looked at, each sample in a part of its own.
    signals = adapt(*((spread, flat) if swap else (flat, spread)))
    first, second = (set(order(policy, signals)) for _ in range(2))
    # Parts from which one has been picked come after those from which none has.
    assert len(first) == 5 and second == set(range(10)) - first


def test_adapt_inf_leaves_the_tails_to_the_last():
    # One of 20 is cut at either end: 0 and 19.
    values = [float(i) for i in range(20)]
    chosen = [
        order(policies.create("adapt_inf", 0.9, seed, clusters=1), adapt(values, values, 20))
        for seed in range(3)
    ]
    assert all(set(c) == set(range(1, 19)) for c in chosen)
    assert len({tuple(c) for c in chosen}) > 1  # ties at random
    last = order(policies.create("adapt_inf", 1.0, clusters=1), adapt(values, values, 20))[18:]
    assert set(last) == {0, 19}


def test_adapt_inf_gives_every_cluster_the_same():
    policy = policies.create("adapt_inf", 0.25, clusters=2, warmup=16)
    counts = torch.zeros(2, dtype=torch.int64)
    g = torch.Generator().manual_seed(4)
    for step in range(50):
        grads = 0.1 * torch.randn(16, 4, generator=g)
        grads[:12, 0] += 1  # three quarters of the candidates
        grads[12:, 1] += 1
        values = torch.rand(3, 16, generator=g)
        signals = batch(middle_grads=grads, loss=values[0], entropy=values[1], el2n=values[2])
        mask = policy.observe(signals).mask
        if step >= 1:
            counts += torch.stack([mask[:12].sum(), mask[12:].sum()])
    assert counts.sum() == 4 * 49 and abs(int(counts[0] - counts[1])) <= 4
