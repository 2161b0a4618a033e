"""Rows of earlier batches beside the candidates."""

import pytest
import torch
from comparing import close
from padded_rows import padded
from tiny_families import collate, framed, smolvlm
from tiny_models import tiny_llama
from tiny_training import Pad, Rows, arguments
from transformers import TrainerCallback

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import COUNTS, TASK
from oasis.train.batch.images import IMAGE_KEYS
from oasis.train.batch.rehearsal import Rehearsal, join
from oasis.train.batch.subbatch import take
from oasis.train.head import Head
from oasis.train.signals.compute import compute


@pytest.mark.parametrize("side", ["left", "right"])
def test_joined_rows_give_the_gram_matrix_of_all(side):
    model = tiny_llama()
    batch, earlier = padded(side), Pad(side, 20)(Rows(6, 9).items)
    del earlier[TASK]
    memory = Rehearsal(capacity=6, seed=1)
    assert memory.draw(8) == []
    memory.add(earlier)
    drawn = memory.draw(4)
    assert max(row["labels"].shape[1] for row in drawn) <= 12
    joined = join(batch, drawn)
    assert joined["labels"].shape[0] == 9
    needs = frozenset({"gram", "validation", "loss", "full_grads"})
    got = compute(model, joined, Head(), needs, 5)
    whole = compute(model, joined, Head(), frozenset({"gram"}))["gram"]
    apart = compute(model, batch, Head(), frozenset({"gram", "full_grads"}))
    assert got["gram"].shape == (5, 5) and got["validation_gram"].shape == (5, 4)
    assert torch.equal(got["validation_gram"], whole[:5, 5:])
    assert torch.allclose(got["gram"], apart["gram"], rtol=1e-6, atol=1e-12)
    assert close(got["full_grads"], apart["full_grads"]) and got["loss"].shape == (5,)
    own = compute(model, drawn[2], Head(), frozenset({"gram"}))["gram"]
    assert torch.allclose(whole[7, 7], own[0, 0], rtol=1e-6)


def test_rows_that_do_not_go_together_are_named():
    batch = {**padded(), "pixel_values": torch.zeros(5, 3, 4)}
    row = {**{k: v[:1] for k, v in padded().items()}, "pixel_values": torch.zeros(1, 3, 5)}
    with pytest.raises(ValueError, match="pixel_values"):
        join(batch, [row])


def test_rows_with_images_go_below_rows_without():
    plain, shown = padded(), {**padded(), COUNTS: torch.tensor([1, 0, 2, 1, 0])}
    for batch, row, counts in ((plain, shown, [0] * 5 + [2]), (shown, plain, [1, 0, 2, 1, 0, 0])):
        joined = join(batch, [take(row, [2])])
        assert joined[COUNTS].tolist() == counts


@pytest.mark.parametrize("numbers", [(1, 0, 2, 3), (0, 3, 2, 1), (3, 0, 0, 3)], ids=str)
def test_rows_with_images_of_their_own_go_with_rows_that_have_none(numbers):
    # SmolVLM: [N, images, C, H, W], which rows without an image, or with fewer, lack or fill up.
    model, items = smolvlm(), [framed(number) for number in numbers]
    whole = collate(items)
    parts = [take(whole, rows) for rows in ([0, 1], [2], [3])]
    for part in parts:
        if "pixel_values" in part:
            most = int(part["pixel_values"].flatten(2).any(dim=2).sum(dim=1).max())
            for key in IMAGE_KEYS:
                part.update({key: part[key][:, :most]} if key in part else {})
    joined = join(parts[0], parts[1:])
    want = compute(model, take(whole, [0, 1, 2, 3]), Head(), frozenset({"gram"}))["gram"]
    got = compute(model, joined, Head(), frozenset({"gram", "validation"}), 2)
    assert torch.allclose(got["gram"], want[:2, :2]), "candidates"
    assert torch.allclose(got["validation_gram"], want[:2, 2:]), "validation rows"


def test_the_reservoir_keeps_rows_with_labels_and_resumes():
    memory = Rehearsal(capacity=4, seed=2)
    for seed in range(5):
        memory.add(padded(seed=seed))
    assert len(memory.memory) == 4 and memory.memory.arrived == 20  # the fourth row has no label
    other = Rehearsal(capacity=4, seed=77)
    other.load_state_dict(memory.state_dict())
    for _ in range(3):
        for a, b in zip(memory.draw(3), other.draw(3), strict=True):
            assert all(torch.equal(a[key], b[key]) for key in a)


class Watch:
    """Keeps the validation rows' products, selects by them."""

    name = "watch"
    needs = frozenset({"validation", "gram"})
    validation = 3

    def __init__(self):
        self.seen = []

    def observe(self, signals):
        products = signals.validation_gram
        self.seen.append(products)
        assert signals.task.tolist() == signals.task.long().tolist()
        score = signals.gram.diagonal() if products is None else products.sum(dim=1)
        return policies.unscored(score >= score.median())

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_the_trainer_draws_validation_rows_of_earlier_batches_and_resumes(tmp_path):
    def run(path, steps, resume=None):
        watch = Watch()
        trainer = SelectionTrainer(
            model=tiny_llama(),
            args=arguments(path, max_steps=6, save_strategy="steps", save_steps=3),
            train_dataset=Rows(48),
            data_collator=Pad(),
            policy=watch,
        )

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step >= steps

        trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=resume)
        return watch.seen

    whole = run(tmp_path / "whole", 6)
    assert whole[0] is None and all(p.shape == (4, 3) for p in whole[1:])
    run(tmp_path / "stopped", 3)
    resumed = run(tmp_path / "stopped", 6, str(tmp_path / "stopped" / "checkpoint-3"))
    assert all(torch.equal(a, b) for a, b in zip(whole[3:], resumed, strict=True))
