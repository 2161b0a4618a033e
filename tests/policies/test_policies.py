"""The policies and their registry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policy_signals import CLUSTERING, poison, signals

import oasis
from oasis import policies
from oasis.policies import Budget, Policy, Signals
from oasis.train.last_scores import score_of


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


def across_tasks(steps=20):
    """A stream of two tasks: the one; in the fifth batch its last samples, a row of no task and the
    first of the other, whose losses, features and gradients are larger; then both, as of a memory.
    """
    for step in range(steps):
        batch = signals(16, step, masked=[5] if step == 4 else ())
        batch.task = torch.arange(16) % 2 * (step > 4)
        if step == 4:
            batch.task = torch.tensor([0] * 7 + [-1] + [1] * 8)
        later = batch.task == 1
        for value in (batch.loss, batch.features, batch.full_grads, batch.middle_grads):
            value[later] *= 2
        yield batch


@pytest.mark.parametrize("name", policies.names())
def test_a_task_boundary_inside_a_batch(name, tmp_path):
    # Clusters small enough that they exist before the boundary.
    options = {"clusters": 4, "warmup": 40} if name in CLUSTERING else {}
    whole, fresh = (policies.create(name, 0.3, seed, **options) for seed in (5, 99))
    candidates = selected = 0
    for step, batch in enumerate(across_tasks()):
        selection = whole.observe(batch)
        candidates += int((batch.tokens > 0).sum())
        selected += int(selection.mask.sum())
        if step > 4:
            again = fresh.observe(batch)
            assert torch.equal(again.mask, selection.mask)
            assert torch.equal(again.order, selection.order)
            assert (again.weight is None) == (selection.weight is None)
            assert selection.weight is None or torch.equal(again.weight, selection.weight)
        elif step == 4:  # the batch with the boundary
            assert selection.mask.any() and not selection.mask[5]
            torch.save(whole.state_dict(), tmp_path / "state.pt")
            fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert candidates == 319
    if name in BUDGETED:
        assert selected == 95  # floor(0.3 x 319)
    else:
        assert selected == 319 if name == "full" else 90 <= selected <= 95


@pytest.mark.parametrize("name", policies.names())
def test_an_option_that_there_is_none_of_is_named(name):
    with pytest.raises(TypeError, match=r"^rubbish: unknown option of .*, expected \w+"):
        policies.create(name, 0.25, rubbish=1)


@pytest.mark.parametrize("name", [n for n in policies.names() if n != "full"])  # has no ratio
def test_a_state_of_another_ratio_is_refused(name):
    saved = policies.create(name, 0.5)
    saved.observe(signals(16))
    policy, untouched = (policies.create(name, 0.0625, seed=3) for _ in range(2))
    with pytest.raises(ValueError, match="state: saved with ratio=0.5, expected 0.0625 as in"):
        policy.load_state_dict(saved.state_dict())
    for step in range(4):
        batch = signals(16, step)
        assert torch.equal(policy.observe(batch).mask, untouched.observe(batch).mask)


@pytest.mark.parametrize("name", [n for n in policies.names() if policies.create(n).needs])
def test_a_policy_says_whether_its_selections_rank_candidates(name):
    policy = policies.create(name, 0.5)
    score = score_of(policy.observe(signals(16)))
    assert getattr(policy, "gives_scores", True) == (score is not None)


BUDGETED = [name for name in policies.names() if name not in ("full", "oasis")]


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("ratio", [0.0625, 0.3, 1.0])
def test_budget_is_exact_at_every_moment(name, ratio):
    policy = policies.create(name, ratio, seed=1)
    seen = kept = 0
    for step, n in enumerate([16, 1, 5, 16, 2, 1, 16, 16, 7, 16]):
        batch = signals(n, step, masked=[2] if n > 4 else ())
        if n == 7:
            poison(batch, 6)
        kept += int(policy.observe(batch).mask.sum())
        seen += n - (n > 4) - (n == 7 and bool(policy.needs))  # the others see no scores
        assert kept == int(ratio * seen + 1e-9)


@pytest.mark.parametrize("name", policies.names())
def test_a_batch_of_one_and_one_without_labels(name):
    policy = policies.create(name, 0.5, seed=2)
    for step in range(6):
        none = policy.observe(signals(3, step, masked=[0, 1, 2]))
        assert not none.mask.any() and not none.skipped.any()
        one = policy.observe(signals(1, 10 + step))
        assert one.mask.shape == (1,)
        if name in BUDGETED:
            assert int(one.mask.sum()) == step % 2


@pytest.mark.parametrize("name", policies.names())
def test_all_equal_samples(name):
    policy = policies.create(name, 0.25, seed=4)
    batch = signals(16)
    for field, value in vars(batch).items():  # 16 copies of sample 3
        if isinstance(value, torch.Tensor):
            setattr(batch, field, value[[3] * 16])
    batch.gram = batch.gram[:, [3] * 16]
    chosen = [policy.observe(batch) for _ in range(8)]
    assert all((s.weight is None or s.weight.isfinite().all()) for s in chosen)
    if name in BUDGETED:
        assert [int(s.mask.sum()) for s in chosen] == [4] * 8
    assert any(s.mask.any() for s in chosen)


@pytest.mark.parametrize("name", [n for n in policies.names() if policies.create(n).needs])
def test_non_finite_samples_are_skipped_and_leave_no_trace(name):
    policy, spared = (policies.create(name, 0.5, seed=6) for _ in range(2))
    for step in range(8):
        batch = signals(12, step)
        poison(batch, 5)
        selection = policy.observe(batch)
        assert selection.skipped.tolist() == [i == 5 for i in range(12)]
        assert not selection.mask[5]
        # The same as if the sample had no label token.
        batch = signals(12, step)
        poison(batch, 5, value=0.0)
        batch.tokens[5] = 0
        assert torch.equal(spared.observe(batch).mask, selection.mask)


@pytest.mark.parametrize("name", [n for n in policies.names() if policies.create(n).needs])
def test_a_missing_signal_is_named_and_changes_nothing(name):
    policy, untouched = (policies.create(name, 0.5, seed=8) for _ in range(2))
    with pytest.raises(ValueError, match=r"signals\.\w+: got None|image_text_score"):
        policy.observe(Signals(4, tokens=torch.ones(4, dtype=torch.int64)))
    for step in range(3):
        batch = signals(12, step)
        assert torch.equal(policy.observe(batch).mask, untouched.observe(batch).mask)


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
    with pytest.raises(ValueError, match="full, .*oasis, random"):
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
