"""The clustering policies on examples worked out by hand, and what holds for all of them."""

import math
from types import SimpleNamespace

import pytest
import torch
from policy_signals import CLUSTERING, batch, circle, order

from oasis import policies
from oasis.policies import Signals
from oasis.policies.coincide import embed

# ---- selfsup ----


@pytest.mark.parametrize(
    ("keep", "first", "second"), [("near", {0, 2}, {1, 2}), ("far", {2, 3}, {3, 0})]
)
def test_selfsup_by_hand(keep, first, second):
    policy = policies.create("selfsup", 0.5, keep=keep, clusters=2, warmup=4, spherical=False)
    # Centers (0, 1) and (10, 2): distances 1, 1, 2, 2. Two slots: near takes one of each.
    points = torch.tensor([[0.0, 0], [0, 2], [10, 0], [10, 4]])
    assert set(order(policy, batch(features=points))) == first
    # Each center has had two points: (0, (2 + 4 + 1) / 4) and (10, (4 + 2 + 6) / 4). Distances
    # 2.25, 0.75, 1, 3.
    points = torch.tensor([[0.0, 4], [0, 1], [10, 2], [10, 6]])
    assert set(order(policy, batch(features=points))) == second
    with pytest.raises(ValueError, match="keep: got 'mid'"):
        policies.create("selfsup", keep="mid")


def test_selfsup_takes_each_centroid_in_turn():
    # One slot a batch. About the one center the points are at 0.1 and 0.2, about the other at 3 and
    # 5: the nearest over all would be a point of the first every time.
    policy = policies.create("selfsup", 0.25, clusters=2)
    policy.kmeans = SimpleNamespace(
        centers=torch.zeros(2, 2),
        update=lambda points: None,
        assign=lambda points: (torch.tensor([0, 0, 1, 1]), torch.tensor([0.2, 0.1, 5.0, 3.0])),
    )
    signals = batch(features=torch.ones(4, 2))
    # Credits 1/2, 1/2 (ties: the first); 0.99 x (-1/2, 1/2) + 1/2 = 0.005, 0.995; then 0.50, 0.50.
    assert [order(policy, signals) for _ in range(4)] == [[1], [3], [1], [3]]
    # A centroid with no candidate in the batch passes its turn on.
    policy.kmeans.assign = lambda points: (torch.zeros(4).long(), torch.tensor([4.0, 3, 2, 1]))
    assert [order(policy, signals) for _ in range(2)] == [[3], [3]]


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


def test_coincide_covers_each_cluster_by_hand():
    # Clusters at 0, 20, 50 and at 100, 140, 175 degrees, two slots each. MMD^2 less its constant,
    # of the kernel exp(cos - 1): mean among the picked of the cluster - 2 x mean of theirs with it.
    # First of the one: 1 - 2 x mean kernel with 0, 20, 50:
    #   0: 1 - 2 x 0.88037 = -0.76073   20: 1 - 2 x 0.93870 = -0.87739   50: -0.71616
    # (with all six in the pool 50 would be closest: -0.08573, -0.20850, -0.28301).
    # Second, beside 20: 0: 0.97074 - 2 x 0.90953 = -0.84832   50: 0.93731 - 1.79678 = -0.85947.
    # First of the other: 100: -0.51197   140: 1 - 2 x 0.87532 = -0.75064   175: -0.54074
    # (with the pool 100: -0.23815, -0.12933, 0.06570).
    # Second, beside 140: 100: 0.89570 - 1.63130 = -0.73560   175: 0.91728 - 1.64570 = -0.72841
    # (with 20 and 50 as though picked of it, 175).
    label = torch.tensor([0, 1, 0, 1, 0, 1])
    policy = policies.create("coincide", 2 / 3)
    policy.kmeans = SimpleNamespace(
        centers=circle(20, 140), update=lambda points: None, assign=lambda points: (label, None)
    )
    policy.quotas = SimpleNamespace(split=lambda slots, shares, available: [2, 2])
    features = five_layers(0, 100, 20, 140, 50, 175)
    assert order(policy, batch(features_multi=features)) == [2, 4, 3, 1]


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
