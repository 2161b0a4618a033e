"""InfoBatch: who stays, with which weight, and how the unpruned end is paid for."""

from fractions import Fraction

import pytest
import torch

from oasis import policies
from oasis.policies import Signals


def losses(*values):
    values = torch.tensor(values, dtype=torch.float64)
    return Signals(len(values), loss=values, tokens=torch.ones(len(values)).long())


TEN = (1, 1, 1, 1, 1, 1, 1, 1, 9, 9)  # mean 2.6: eight below, two above


def test_below_mean_samples_pay_as_in_the_original():
    # 6 of 10: both above stay, 4 of the 8 below, so their probability is 1/2 = `keep`: the
    # original's rule with r = 1/2. Weights in its ratio, 1 to 1/(1 - r) = 2, times k/n = 0.6.
    policy = policies.create("infobatch", 0.6, seed=1)
    counts = torch.zeros(10)
    for _ in range(500):
        selection = policy.observe(losses(*TEN))
        counts += selection.mask
        low, high = selection.mask[:8], selection.mask[8:]
        assert high.all() and low.sum() == 4
        assert torch.allclose(selection.weight[8:], torch.tensor(0.6))
        assert torch.allclose(selection.weight[:8][low], torch.tensor(1.2))
        assert (selection.weight[:8][~low] == 0).all()
    assert (counts[:8] - 250).abs().max() < 4.5 * 11.2  # binomial: 11.2


def test_what_equals_the_mean_is_not_below_it():
    # As in the authors' code (`scores < mean`): of equal losses none is pruned rather than others,
    # and none weighs more.
    policy, counts = policies.create("infobatch", 0.5, seed=2), torch.zeros(8)
    for _ in range(500):
        selection = policy.observe(losses(*[2.0] * 8))
        counts += selection.mask
        assert torch.equal(selection.weight, selection.mask.float())
    assert (counts - 250).abs().max() < 4.5 * 11.2


def test_above_mean_samples_are_thinned_at_small_budgets():
    # 3 of 10 at keep = 1/2: the probabilities x and x/2 have 2 x + 8 x/2 = 3, x = 1/2. Weights
    # 0.3 / (1/2) = 0.6 and 0.3 / (1/4) = 1.2. With keep = 0 no below-mean sample ever: 2 of 10.
    policy = policies.create("infobatch", 0.3, seed=5)
    mask = torch.zeros(10)
    for _ in range(500):
        selection = policy.observe(losses(*TEN))
        mask += selection.mask
        expected = torch.tensor([1.2] * 8 + [0.6] * 2)
        assert torch.allclose(selection.weight, expected * selection.mask)
    assert (mask[:8] - 125).abs().max() < 4.5 * 9.7
    assert (mask[8:] - 250).abs().max() < 4.5 * 11.2
    strict = policies.create("infobatch", 0.2, keep=0.0)
    for _ in range(20):
        selection = strict.observe(losses(*TEN))
        assert selection.indices.tolist() == [8, 9]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.4, 0.7])
def test_weights_estimate_the_mean_gradient(ratio):
    # (1/k) sum of weight x gradient is unbiased if E[weight] = k / n for every sample; over
    # batches of 10, that is `ratio` on average.
    policy, total = policies.create("infobatch", ratio, seed=7), 1000
    values = (0.1, 0.5, 0.9, 1.3, 2.0, 0.2, 4.0, 0.4, 0.6, 3.0)
    weight = torch.stack([policy.observe(losses(*values)).weight for _ in range(total)]).double()
    # Some weights never vary (above the mean at 0.7): those must be right to a thousandth.
    error = (weight.mean(dim=0) - ratio) / (weight.std(dim=0) / total**0.5).clamp(min=2e-4)
    assert error.abs().max() < 4.5


def test_the_mean_is_that_of_the_batches_before():
    # Batch means 1 and 4: running mean 1, then max(1/2, 0.1) of the way to 4: 2.5.
    policy = policies.create("infobatch", 0.5, seed=0)
    policy.observe(losses(1, 1))
    assert policy.mean == 1.0
    # 2 and 3 and 5 are above 1: all three groups alike, whatever this batch's own mean is.
    selection = policy.observe(losses(2, 3, 5, 6))
    assert policy.mean == 2.5 and selection.mask.sum() == 2
    assert torch.allclose(selection.weight[selection.mask], torch.ones(2))
    for _ in range(30):
        policy.observe(losses(7, 7))
    assert policy.mean == pytest.approx(7, abs=0.6)
    # From the 10th batch on, the newest has 1 - momentum: 0.1.
    before = policy.mean
    policy.observe(losses(27, 27))
    assert policy.mean == pytest.approx(before + 0.1 * (27 - before))


@pytest.mark.parametrize("ratio", [0.0625, 0.25, 0.3])
def test_the_budget_is_spent_evenly_by_default(ratio):
    # Known length or not: after every batch what the ratio allows, and no end that is not pruned.
    g = torch.Generator().manual_seed(1)
    policy = policies.create("infobatch", ratio, total_batches=80)
    kept = 0
    for t in range(1, 81):
        kept += int(policy.observe(losses(*torch.rand(16, generator=g).tolist())).mask.sum())
        assert kept == int(Fraction(str(ratio)) * 16 * t)


@pytest.mark.parametrize("ratio, whole", [(0.25, 10), (0.5, 10), (0.125, 5), (0.0625, 2)])
def test_the_end_is_not_pruned_and_the_budget_is_exact(ratio, whole):
    # 80 batches of 16: the last 10, but no more than half the budget's worth: ratio / 2 of them.
    policy = policies.create("infobatch", ratio, anneal=0.125, total_batches=80, seed=3)
    g = torch.Generator().manual_seed(1)
    counts = []
    for _ in range(80):
        selection = policy.observe(losses(*torch.rand(16, generator=g).tolist()))
        counts.append(int(selection.mask.sum()))
        assert sum(counts) <= ratio * 16 * len(counts)
        if counts[-1] == 16:
            assert torch.equal(selection.weight, torch.ones(16))
    assert counts[80 - whole :] == [16] * whole and max(counts[: 80 - whole]) < 16
    assert sum(counts) == ratio * 16 * 80
    # Before the end: at every moment what keeps the rest affordable.
    early = (Fraction(ratio) * 80 - whole) / (80 - whole)
    for t in range(1, 80 - whole + 1):
        assert sum(counts[:t]) == int(early * 16 * t)


def test_batches_of_uneven_size_never_exceed_the_budget():
    g = torch.Generator().manual_seed(2)
    sizes = torch.randint(1, 17, (200,), generator=g).tolist()
    policy = policies.create("infobatch", 0.25, anneal=0.125, total_batches=200)
    seen = kept = 0
    for n in sizes:
        kept += int(policy.observe(losses(*torch.rand(n, generator=g).tolist())).mask.sum())
        seen += n
        assert kept <= 0.25 * seen
    assert kept > 0.24 * seen
    for n in sizes[:20]:  # longer than announced: on budget all the same
        kept += int(policy.observe(losses(*torch.rand(n, generator=g).tolist())).mask.sum())
        seen += n
        assert kept <= 0.25 * seen


def test_the_unpruned_end_resumes():
    options = {"anneal": 0.125, "total_batches": 16}
    whole, stopped = (policies.create("infobatch", 0.25, **options) for _ in range(2))
    batches = [losses(*torch.rand(8).tolist()) for _ in range(16)]
    masks = [whole.observe(b).mask for b in batches]
    for b in batches[:13]:
        stopped.observe(b)
    fresh = policies.create("infobatch", 0.25, seed=4, **options)
    fresh.load_state_dict(stopped.state_dict())
    for b, mask in zip(batches[13:], masks[13:], strict=True):
        assert torch.equal(fresh.observe(b).mask, mask)
    assert masks[-1].all()


@pytest.mark.parametrize(
    "option", [{"keep": 1.5}, {"momentum": -1}, {"anneal": "no"}, {"total_batches": 0}]
)
def test_bad_options(option):
    with pytest.raises((TypeError, ValueError), match=next(iter(option))):
        policies.create("infobatch", **option)
