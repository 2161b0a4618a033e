"""Running clusters, their shares, and the pool of the latest candidates."""

import math

import pytest
import torch

from oasis.policies.kmeans import RunningKMeans
from oasis.policies.pool import Pool
from oasis.policies.quotas import RunningQuotas, softmax_shares

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
