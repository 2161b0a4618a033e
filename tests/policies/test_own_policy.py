"""The README's policy of one's own: runs as printed, and meets what a policy has to."""

from pathlib import Path

import pytest
import torch
from tiny_models import tiny_llama
from tiny_training import selection_trainer

from oasis import policies
from oasis.policies import Signals

README = Path(__file__).parents[2] / "README.md"
EXAMPLE = README.read_text(encoding="utf-8").split("class HighestLoss")[1].split("```")[0]


@pytest.fixture
def create(monkeypatch):
    """`policies.create` in a registry that has the example, and is forgotten afterwards."""
    monkeypatch.setattr(policies.base, "_FACTORIES", dict(policies.base._FACTORIES))
    exec("class HighestLoss" + EXAMPLE, {"policies": policies})
    return lambda ratio: policies.create("highest_loss", ratio)


def losses(*values, tokens=None, dtype=torch.float64):
    n = len(values)
    tokens = torch.ones(n).long() if tokens is None else torch.tensor(tokens)
    return Signals(n, loss=torch.tensor(values, dtype=dtype), tokens=tokens)


def test_it_takes_ten_lines():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 10


def test_the_highest_losses(create):
    policy = create(0.5)
    assert isinstance(policy, policies.Policy)
    assert policy.observe(losses(1, 4, 2, 3)).order.tolist() == [1, 3]
    halves = policy.observe(losses(1, 4, 2, 3, dtype=torch.bfloat16))
    assert halves.indices.tolist() == [1, 3]


def test_equal_losses_and_batches_of_one(create):
    policy = create(0.25)
    assert policy.observe(losses(*[2.0] * 16)).indices.tolist() == [0, 1, 2, 3]
    assert [int(policy.observe(losses(2.0)).mask.sum()) for _ in range(8)] == [0, 0, 0, 1] * 2


def test_samples_without_labels_and_non_finite_ones_are_left_out(create):
    selection = create(0.5).observe(losses(9, 1, 8, float("nan"), 2, 3, tokens=[0, 1, 1, 1, 1, 1]))
    assert selection.order.tolist() == [2, 5]  # half of the four that count
    assert selection.skipped.tolist() == [i == 3 for i in range(6)]


def test_the_ratio_is_exact_and_resumes(create):
    g = torch.Generator().manual_seed(0)
    batches = [losses(*torch.rand(16, generator=g).tolist()) for _ in range(30)]
    policy, kept = create(0.3), 0
    for step, batch in enumerate(batches):
        mask = policy.observe(batch).mask
        kept += int(mask.sum())
        assert kept == 16 * (step + 1) * 3 // 10
        if step == 10:
            fresh = create(0.3)
            fresh.load_state_dict(policy.state_dict())
        elif step > 10:
            assert torch.equal(fresh.observe(batch).mask, mask)
    assert kept == 144  # 0.3 of 480
    with pytest.raises(ValueError, match=r"saved with ratio=0.3, expected 0.5"):
        create(0.5).load_state_dict(policy.state_dict())


def test_it_trains_by_its_name(create, tmp_path):
    trainer = selection_trainer(tmp_path, tiny_llama(), "highest_loss", max_steps=2)
    trainer.train()
    assert trainer.selection_counts.candidates == 8 and trainer.selection_counts.selected == 2
