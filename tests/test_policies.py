"""The policies and their registry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oasis
from oasis import policies
from oasis.policies import Budget, Policy, Signals


def signals(n, seed=0, masked=()):
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(n, 40, generator=g, dtype=torch.float64)
    tokens = torch.randint(1, 5, (n,), generator=g)
    for i in masked:
        grads[i] = 0
        tokens[i] = 0
    return Signals(n, gram=grads @ grads.T, tokens=tokens)


@pytest.mark.parametrize("name", policies.names())
def test_protocol(name):
    policy = policies.create(name, ratio=0.5, seed=3)
    assert isinstance(policy, Policy)
    assert policy.name == name and policy.needs <= policies.SIGNALS
    selection = policy.observe(signals(16, masked=[4]))
    assert selection.mask.shape == selection.skipped.shape == (16,)
    assert selection.mask.dtype == torch.bool and not selection.mask[4]


@pytest.mark.parametrize("name", policies.names())
def test_state_resumes_the_stream(name, tmp_path):
    whole, stopped = (policies.create(name, 0.3, seed=5) for _ in range(2))
    masks = [whole.observe(signals(16, seed)).mask for seed in range(20)]
    for seed in range(9):
        stopped.observe(signals(16, seed))
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    fresh = policies.create(name, 0.3, seed=99)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in range(9, 20):
        assert torch.equal(fresh.observe(signals(16, seed)).mask, masks[seed])


def test_full_takes_all_that_have_a_label():
    selection = policies.create("full").observe(signals(6, masked=[0, 5]))
    assert selection.indices.tolist() == [1, 2, 3, 4]


@given(
    ratio=st.sampled_from([1.0, 0.5, 0.29, 0.25, 0.125, 0.0625, 1 / 3, 0.001]),
    sizes=st.lists(st.integers(1, 40), max_size=30),
)
def test_random_is_exactly_on_budget_at_every_moment(ratio, sizes):
    policy = policies.create("random", ratio)
    seen = kept = 0
    for n in sizes:
        kept += int(policy.observe(Signals(n)).mask.sum())
        seen += n
        exact = ratio * seen
        assert kept == int(exact + 1e-9)


def test_budget_reads_the_ratio_as_it_is_meant():
    assert Budget(0.29).take(100) == 29
    assert Budget(0.07).take(100) == 7
    assert Budget(1 / 3).take(3) == 1


def test_random_is_uniform_and_leaves_torch_alone():
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    policy = policies.create("random", 0.25, seed=7)
    counts = sum(policy.observe(Signals(16)).mask.int() for _ in range(4000))
    assert torch.equal(torch.rand(()), expected)
    assert counts.sum() == 16000
    # 4000 draws at 1/4: standard deviation 27.
    assert (counts - 1000).abs().max() < 5 * 27


def test_oasis_is_the_selector():
    selector = oasis.Selector(0.4, seed=2, siren="residual", nonfinite="skip")
    policy = policies.create("oasis", 0.4, seed=2, siren="residual")
    for seed in range(5):
        batch = signals(16, seed)
        a, b = policy.observe(batch), selector.select(gram=batch.gram)
        assert torch.equal(a.mask, b.mask) and torch.equal(a.probability, b.probability)
    assert policy.statistics() == {
        "threshold": float(selector.threshold),
        "mean": float(selector.mean),
        "deviation": float(selector.deviation(16)),
    }


def test_oasis_skips_or_raises_on_non_finite_samples():
    batch = signals(4)
    batch.gram[1, :] = batch.gram[:, 1] = float("nan")
    selection = policies.create("oasis", 1.0).observe(batch)
    assert selection.skipped.tolist() == [False, True, False, False]
    with pytest.raises(ValueError, match=r"\[1\]"):
        policies.create("oasis", nonfinite="raise").observe(batch)


def test_register():
    class First(policies.Full):
        name = "first"

    try:
        policies.register("first", First)
        policies.register("first", First)
        assert "first" in policies.names()
        assert isinstance(policies.create("first"), First)
        with pytest.raises(ValueError, match="'full' is registered already"):
            policies.register("full", First)
        with pytest.raises(TypeError, match="factory"):
            policies.register("second", 3)
    finally:
        policies.base._FACTORIES.pop("first", None)
    with pytest.raises(ValueError, match="full, oasis, random"):
        policies.create("first")


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5, "half", True, float("nan")])
def test_bad_ratio(ratio):
    with pytest.raises((TypeError, ValueError), match="ratio"):
        policies.create("random", ratio)


def test_missing_signal_is_named():
    with pytest.raises(ValueError, match="gram"):
        policies.create("oasis").observe(Signals(4))
    with pytest.raises(ValueError, match="nonfinite"):
        policies.create("oasis", selector=oasis.Selector(), nonfinite="ignore")
