"""The clustering policies on examples worked out by hand, and the parts they share."""

import math
from types import SimpleNamespace

import pytest
import torch
from policy_signals import CLUSTERING

from oasis import policies
from oasis.policies import Signals
from oasis.policies.adapt_inf import histogram_entropy, strata
from oasis.policies.coincide import embed
from oasis.policies.kmeans import RunningKMeans
from oasis.policies.pool import Pool
from oasis.policies.quotas import RunningQuotas, softmax_shares


def circle(*degrees):
    """[n, 2] float64 unit vectors."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def batch(**fields):
    n = len(next(iter(fields.values())))
    return Signals(n, tokens=torch.ones(n, dtype=torch.int64), **fields)


def order(policy, signals):
    return policy.observe(signals).order.tolist()


# ---- k-means ----


def test_kmeans_by_hand():
    kmeans = RunningKMeans(2, warmup=4)
    assert kmeans.centers.shape == (0, 0)
    kmeans.update(torch.tensor([[0.0, 0], [0, 2]]))
    assert not kmeans.ready and kmeans.centers.tolist() == [[0, 1]]
    assert kmeans.assign(torch.tensor([[3.0, 5]]))[1].tolist() == [5]
    kmeans.update(torch.tensor([[10.0, 0], [10, 4]]))
    assert kmeans.ready
    assert sorted(kmeans.centers.tolist()) == [[0, 1], [10, 2]]
    label, distance = kmeans.assign(torch.tensor([[0.0, 0], [10, 5], [0, 1]]))
    assert distance.tolist() == [1, 3, 0] and label[0] == label[2] != label[1]
    # Each center has had two points: (2 (0, 1) + (0, 4) + (0, 1)) / 4 and
    # (2 (10, 2) + 2 (10, 6)) / 4.
    kmeans.update(torch.tensor([[0.0, 4], [0, 1], [10, 6], [10, 6]]))
    assert sorted(kmeans.centers.tolist()) == [[0, 1.75], [10, 4]]


@pytest.mark.parametrize("spherical", [True, False])
def test_kmeans_resumes_bit_for_bit_before_and_after_the_warm_up(spherical, tmp_path):
    g = torch.Generator().manual_seed(0)
    stream = torch.randn(40, 12, 6, generator=g)
    stream[25:] += 8  # so that centers are put elsewhere, which takes random numbers
    kmeans = RunningKMeans(5, warmup=30, seed=1, spherical=spherical)
    centers = []
    for step, points in enumerate(stream):
        if step in (1, 9, 27):
            torch.save(kmeans.state_dict(), tmp_path / f"{step}.pt")
        kmeans.update(points)
        centers.append(kmeans.centers.clone())
    if spherical:
        assert torch.allclose(centers[-1].norm(dim=1), torch.ones(5))
    for start in (1, 9, 27):
        other = RunningKMeans(5, warmup=30, seed=77, spherical=spherical)
        other.load_state_dict(torch.load(tmp_path / f"{start}.pt", weights_only=True))
        for step in range(start, 40):
            other.update(stream[step])
            assert torch.equal(other.centers, centers[step]), (start, step)


def test_new_tasks_find_centers():
    g = torch.Generator().manual_seed(0)
    kmeans = RunningKMeans(8, seed=2)
    places = torch.tensor([[0.0, 0], [20, 0], [20, 9], [20, -9]])
    seen = []
    for step in range(100):  # the first task alone, then all that has arrived
        before = kmeans.centers.clone()
        seen.append(places[0 if step < 40 else 1 + step % 3] + torch.randn(16, 2, generator=g))
        memory = torch.cat(seen)
        kmeans.update(memory[torch.randint(len(memory), (16,), generator=g)])
        if step > 60:  # most centers keep their number, also where k-means is run again
            assert ((before - kmeans.centers).norm(dim=1) < 4).sum() >= 5
    nearest = torch.cdist(kmeans.centers, places).min(dim=0).values
    assert (nearest < 2).all()
    assert kmeans.centers.isfinite().all() and len(kmeans._latest) == 64


def test_kmeans_of_equal_points():
    kmeans = RunningKMeans(4, spherical=True)
    for _ in range(6):
        kmeans.update(torch.ones(8, 3))
        label, distance = kmeans.assign(torch.ones(8, 3))
        assert (label == label[0]).all() and (distance < 1e-6).all()
    kmeans.update(torch.ones(0, 3))
    with pytest.raises(ValueError, match="warmup: got 3"):
        RunningKMeans(4, warmup=3)
    with pytest.raises(ValueError, match="clusters: got 0"):
        RunningKMeans(0)


# ---- quotas and pool ----


def test_quotas_by_hand():
    quotas, shares = RunningQuotas(), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    plenty = torch.tensor([9, 9, 9])
    # Credits 2, 1.2, 0.8: one to 0 (1 left), one to 1 (0.2), one to 0 (0), one to 2 (-0.2).
    assert quotas.split(4, shares, plenty) == [2, 1, 1]
    # 0.99 (0, 0.2, -0.2) + (2, 1.2, 0.8) = 2, 1.398, 0.602: 0, 1, 0, 2 -> 0, 0.398, -0.398.
    assert quotas.split(4, shares, plenty) == [2, 1, 1]
    # 2, 1.594, 0.406: 0, 1, 0 (ties lose to 0.594), 1 -> 0, -0.406, 0.406.
    assert quotas.split(4, shares, plenty) == [2, 2, 0]
    assert quotas.credit.tolist() == pytest.approx([0, -0.40598, 0.40598], abs=1e-12)
    assert quotas.split(0, shares, plenty) == [0, 0, 0]
    # 1.5, 0.498, 1.002, but 0 and 2 have one candidate each.
    assert quotas.split(3, shares, torch.tensor([1, 9, 1])) == [1, 1, 1]


def test_quotas_hold_over_the_stream_for_clusters_that_are_often_absent():
    g = torch.Generator().manual_seed(1)
    quotas, shares = RunningQuotas(), torch.tensor([0.1, 0.4, 0.3, 0.2])
    counts = torch.zeros(4, dtype=torch.int64)
    for _ in range(2000):
        available = torch.randint(2, 5, (4,), generator=g)
        if torch.rand((), generator=g) < 0.8:
            available[0] = 0  # in one batch out of five
        counts += torch.tensor(quotas.split(2, shares, available))
    assert counts.sum() == 4000
    # Credits fade by 1 % a batch, which costs the first about 0.01 x its mean credit / 2 slots.
    assert torch.allclose(counts / 4000, shares, atol=0.008)


def test_what_a_cluster_lacks_goes_to_the_others_by_their_shares():
    quotas, counts = RunningQuotas(), torch.zeros(3, dtype=torch.int64)
    for _ in range(1000):  # the first can never fill its nine tenths
        counts += torch.tensor(
            quotas.split(4, torch.tensor([0.9, 0.075, 0.025]), torch.tensor([1, 9, 9]))
        )
    assert counts[0] == 1000
    # Four credits a batch are 3.6, 0.3, 0.1, and 2.6 of the first's cannot be spent: the others
    # share three slots, each 1.3 above its own 0.3 and 0.1. The quadratic programme of dbp's
    # authors says the same: x nearest to (3.6, 0.3, 0.1) with sum 4 and x_0 <= 1 is (1, 1.6, 1.4).
    assert counts[1:].tolist() == pytest.approx([1600, 1400], rel=0.05)


def test_softmax_shares():
    shares = softmax_shares(torch.tensor([1.0, 2.0, 5.0]), 2.0, torch.tensor([True, True, False]))
    assert shares.tolist() == pytest.approx([1 / (1 + math.e**0.5), 1 / (1 + math.e**-0.5), 0])
    assert softmax_shares(torch.ones(2), 1.0, torch.zeros(2).bool()).tolist() == [0.5, 0.5]
    huge = softmax_shares(torch.tensor([1e4, 0.0]), 0.1, torch.ones(2).bool())
    assert huge.tolist() == [1, 0]


def test_pool_keeps_the_latest():
    pool = Pool(3)
    assert len(pool) == 0
    pool.add(x=torch.arange(2))
    pool.add(x=torch.arange(2, 4))
    assert pool["x"].tolist() == [1, 2, 3]
    pool.add(x=torch.arange(5))  # a whole batch always stays
    assert pool["x"].tolist() == [0, 1, 2, 3, 4] and len(pool) == 5


# ---- selfsup ----


@pytest.mark.parametrize(
    ("keep", "first", "second"), [("near", [0, 1], [1, 2]), ("far", [2, 3], [3, 0])]
)
def test_selfsup_by_hand(keep, first, second):
    policy = policies.create("selfsup", 0.5, keep=keep, clusters=2, warmup=4, spherical=False)
    # Centers (0, 1) and (10, 2): distances 1, 1, 2, 2.
    points = torch.tensor([[0.0, 0], [0, 2], [10, 0], [10, 4]])
    assert order(policy, batch(features=points)) == first
    # Each center has had two points: (0, (2 + 4 + 1) / 4) and (10, (4 + 2 + 6) / 4). Distances
    # 2.25, 0.75, 1, 3.
    points = torch.tensor([[0.0, 4], [0, 1], [10, 2], [10, 6]])
    assert order(policy, batch(features=points)) == second
    with pytest.raises(ValueError, match="keep: got 'mid'"):
        policies.create("selfsup", keep="mid")


def test_selfsup_on_the_sphere_knows_directions_only():
    policy = policies.create("selfsup", 1 / 3, clusters=1)
    # The mean direction of 0, 30 and 90 degrees is near 39: 30 is nearest, however long.
    points = circle(0, 30, 90) * torch.tensor([[1.0], [50.0], [0.01]])
    assert order(policy, batch(features=points)) == [1]


# ---- coincide ----


def five_layers(*degrees):
    """Features of five layers that `embed` turns into unit vectors at these angles."""
    return torch.atanh(0.5 * circle(*degrees)).unsqueeze(1).repeat(1, 5, 1)


def test_coincide_embeds_by_layers():
    # tanh to (0.6, 0) and (0, 0.1), each to length one, together to length one.
    features = torch.atanh(torch.tensor([[[0.6, 0.0], [0.0, 0.1]]]))
    assert embed(features)[0].tolist() == pytest.approx([0.5**0.5, 0, 0, 0.5**0.5])
    points = embed(five_layers(0, 60)).double()
    assert float(points[0] @ points[1]) == pytest.approx(0.5)


def test_coincide_covers_a_cluster_by_hand():
    policy = policies.create("coincide", 0.6, clusters=1)
    # Five samples at 0, 0, 0, 90 and 180 degrees; |u - v|^2 = 2 - 2 cos, kernel exp(cos - 1):
    # 1, 0.36788 (90 apart) and 0.13534 (180 apart). Mean kernel of each with the cluster:
    #   0: (3 + 0.36788 + 0.13534) / 5 = 0.70064   90: (1 + 4 x 0.36788) / 5 = 0.49430
    #   180: (1 + 0.36788 + 3 x 0.13534) / 5 = 0.35478
    # MMD^2 less its constant: mean kernel among the picked - 2 x mean kernel with the cluster.
    # First pick: 1 - 2 x 0.70064 is lowest at 0 degrees, the first of the three.
    # Second, (2 + 2 k) / 4 - (0.70064 + own): again 0: -0.40129, 90: -0.51101, 180: -0.48775.
    # Third, beside 0 and 90: again 0: (2.73576 + 2.73576 + 1) / 9 - 1.26373 = -0.54467,
    #   180: (2.73576 + 1.00643 + 1) / 9 - 1.03315 = -0.50624.
    assert order(policy, batch(features_multi=five_layers(0, 0, 0, 90, 180))) == [0, 3, 1]


def test_coincide_counts_earlier_picks_of_the_cluster():
    policy = policies.create("coincide", 0.5, clusters=1)
    assert order(policy, batch(features_multi=five_layers(0, 120))) == [0]
    # In the pool: 0 (picked), 120, and now 0 and 120 again. Mean kernel with the cluster is the
    # same for all, so what is unlike the pick comes closer: 120.
    assert order(policy, batch(features_multi=five_layers(0, 120))) == [1]


def test_coincide_shares_by_hand():
    policy = policies.create("coincide", clusters=3)
    policy.kmeans = SimpleNamespace(centers=circle(0, 60, 90))
    points = circle(0, 0, 30, 90, 60).float()
    policy.pool.add(points=points, picked=torch.zeros(5).bool())
    # Transferability: (0.5 + 0) / 2, (0.5 + 0.86603) / 2, (0.86603 + 0) / 2.
    # Density: of 60 and 30, exp(cos 30 - 1) = 0.87462; of two equal, 1; of one alone, 1.
    label = torch.tensor([2, 2, 1, 0, 1])
    scores = [0.25, 0.68301 / 0.87462, 0.43301]
    weights = [math.exp(10 * score) for score in scores]
    shares = policy._shares(label, policy._kernel())
    assert shares.tolist() == pytest.approx([w / sum(weights) for w in weights], rel=1e-3)


# ---- dbp ----


def test_dbp_by_hand():
    policy = policies.create("dbp", 0.5, clusters=1)
    # At 0, 5, 60 and 90 degrees; the mean points to 38.0. 0 and 5 have cosine 0.9962 > 0.99: 0 is
    # farther out and stays, though 5 has more entropy. Then by entropy: 90 (4), 60 (2).
    points, entropy = circle(0, 5, 60, 90), torch.tensor([1.0, 3, 2, 4])
    assert order(policy, batch(features=points, entropy=entropy)) == [3, 2]
    # 92 is like 90, which has been trained on, so 20 is taken in spite of its entropy. (3 of 6)
    points = circle(92, 20)
    assert order(policy, batch(features=points, entropy=torch.tensor([9.0, 1]))) == [1]
    # What is dropped comes last, not never.
    policy = policies.create("dbp", 1.0, clusters=1)
    points = circle(0, 5, 60, 90)
    assert order(policy, batch(features=points, entropy=entropy)) == [3, 2, 0, 1]


def test_dbp_drops_a_copy_of_what_is_dropped_as_semdedup_does():
    # The mean of 0, 6, 12 and 100 degrees is at 24.9: of the three that are alike 0 is farthest
    # out, then 6, then 12. 6 degrees apart the cosine is 0.9945, above 0.99; 12 apart 0.9781. In
    # SemDeDup's code a sample goes if it is like *any* that is farther out, be that one dropped
    # itself: 6 is like 0, and 12 is like 6.
    policy = policies.create("dbp", 0.5, clusters=1)
    points = circle(0, 6, 12, 100).float()
    policy.kmeans.update(points)
    policy.pool.add(points=points, picked=torch.zeros(4).bool())
    dropped = policy._duplicates(points, torch.zeros(4, dtype=torch.int64))
    assert dropped.tolist() == [False, True, True, False]


def test_dbp_filters_images_that_do_not_match():
    policy = policies.create("dbp", 0.5, clusters=1)
    # The median of the known scores is 0.4: 0.1 and 0.3 are dropped, no image (NaN) is not.
    scores = torch.tensor([0.1, 0.5, float("nan"), 0.3, 0.9])
    entropy = torch.tensor([9.0, 1, 2, 8, 3])
    fields = {"features": circle(0, 70, 140, 210, 280), "entropy": entropy}
    assert order(policy, batch(**fields, image_text_score=scores)) == [4, 2]


def test_dbp_shares_by_hand():
    policy = policies.create("dbp", clusters=3)
    policy.kmeans = SimpleNamespace(centers=circle(0, 90, 180))
    policy.pool.add(points=circle(0, 60, 90).float(), picked=torch.zeros(3).bool())
    # d_inter: mean of 1 and 2, of 1 and 1, of 2 and 1. d_intra: mean of 0 and 0.5; 0; no member.
    # softmax of 1.5 x 0.25 / 0.5 = 0.75 and 0; nothing for the empty one.
    shares = policy._shares(torch.tensor([0, 0, 1]))
    expected = math.exp(0.75) / (math.exp(0.75) + 1)
    assert shares.tolist() == pytest.approx([expected, 1 - expected, 0], abs=1e-6)


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


# ---- all of them ----


def small(step, n=16):
    """Every signal these need, of samples in three bunches; one without labels, one not finite."""
    g = torch.Generator().manual_seed(step)
    centre = 3 * torch.eye(6)[torch.randint(3, (n,), generator=g)]
    x = [centre + torch.randn(n, 6, generator=g) for _ in range(3)]
    values = torch.rand(3, n, generator=g)
    tokens = torch.ones(n, dtype=torch.int64)
    if n > 4 and step % 3 == 1:
        tokens[2] = 0
    if n > 4 and step % 4 == 2:
        for value in x:
            value[3, 1] = float("nan")
    return Signals(
        n,
        tokens=tokens,
        features=x[0],
        features_multi=torch.stack([x[0]] * 5, dim=1) / 3,
        full_grads=x[1],
        middle_grads=x[2],
        loss=values[0],
        entropy=values[1],
        el2n=values[2],
    )


@pytest.mark.parametrize("name", CLUSTERING)
def test_budget_and_resume_on_both_sides_of_the_warm_up(name, tmp_path):
    def fresh(seed):
        return policies.create(name, 0.3, seed, clusters=4, warmup=60)

    sizes = [16, 1, 5, 16, 16, 16, 1, 16, 9, 16, 16, 2, 16, 16]
    whole, masks = fresh(5), []
    candidates = selected = 0
    for step, n in enumerate(sizes):
        if step in (2, 8):
            torch.save(whole.state_dict(), tmp_path / f"{step}.pt")
        signals = small(step, n)
        selection = whole.observe(signals)
        masks.append(selection.mask)
        assert not (selection.mask & selection.skipped).any()
        assert selection.skipped.tolist() == [n > 4 and step % 4 == 2 and i == 3 for i in range(n)]
        assert sorted(selection.order.tolist()) == selection.indices.tolist()
        candidates += int((signals.tokens > 0).sum() - selection.skipped.sum())
        selected += int(selection.mask.sum())
        assert selected == candidates * 3 // 10
    assert whole.kmeans.ready
    for start in (2, 8):
        resumed = fresh(5)
        resumed.observe(small(99))  # forgotten by loading
        resumed.load_state_dict(torch.load(tmp_path / f"{start}.pt", weights_only=True))
        for step in range(start, len(sizes)):
            assert torch.equal(resumed.observe(small(step, sizes[step])).mask, masks[step])


@pytest.mark.parametrize("name", CLUSTERING)
def test_state_is_a_copy(name):
    policy = policies.create(name, 0.5, clusters=2)
    policy.observe(small(0))
    state = policy.state_dict()
    before = str(state)
    for step in range(1, 6):
        policy.observe(small(step))
    assert str(state) == before


def test_bad_options():
    for name, options in [
        ("coincide", {"temperature": 0}),
        ("coincide", {"bandwidth": -1}),
        ("coincide", {"pool": 0}),
        ("dbp", {"bound": 1.5}),
        ("dbp", {"image_text_keep": 0}),
        ("tive", {"temperature": -1}),
        ("adapt_inf", {"tail": 0.5}),
        ("selfsup", {"warmup": 2}),
    ]:
        with pytest.raises(ValueError, match=f"{next(iter(options))}: got"):
            policies.create(name, **options)
    with pytest.raises(TypeError, match="tasks: got"):
        policies.create("tive", tasks="yes")
