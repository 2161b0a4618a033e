"""mode="fill": full training batches of selected samples; mode="step" and its warm-up."""

import pytest
import torch
from tiny_models import tiny_llama
from tiny_training import Fixed, InOrder, Pad, Rows, arguments
from torch.utils.data import IterableDataset
from transformers import DataCollatorWithFlattening, TrainerCallback

from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK

MASKS = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0]]  # 7 of 16


def fixed(ratio=7 / 16):
    policy = Fixed([torch.tensor(mask, dtype=torch.bool) for mask in MASKS])
    policy.ratio = ratio
    return policy


def filling(path, policy, data=None, events=None, **options):
    return SelectionTrainer(
        model=tiny_llama(dtype=torch.float32, attention_dropout=0.2),
        args=arguments(path, **options),
        train_dataset=data or Rows(48),
        data_collator=Pad(),
        policy=policy,
        mode="fill",
        on_event=None if events is None else events.append,
    )


def spied(trainer):
    """Candidate batches, and training batches as they come out."""
    candidates, out = [], []
    select, samples = trainer._select, trainer.get_batch_samples

    def both(*args):
        found = samples(*args)
        out.append(found[0])
        return found

    trainer._select = lambda batch: candidates.append(dict(batch)) or select(batch)
    trainer.get_batch_samples = both
    return candidates, out


def selected_rows(candidates):
    return [
        batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist()
        for number, batch in enumerate(candidates)
        for row, kept in enumerate(MASKS[number % 4])
        if kept
    ]


@pytest.mark.shows(
    "Modes", '`mode="fill"`: epochs or `max_steps`, gradient accumulation', "works: full batches"
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_step_trains_on_full_batches_of_what_was_selected(tmp_path, accumulation):
    options = {"gradient_accumulation_steps": accumulation, "num_train_epochs": 2, "max_steps": -1}
    trainer = filling(tmp_path, fixed(), **options, lr_scheduler_type="linear")
    candidates, out = spied(trainer)
    trainer.train()
    steps = 42 // (4 * accumulation)  # of 96 candidates 42 are selected
    assert trainer.state.global_step == trainer.state.max_steps == len(out) == steps
    batches = [batch for step in out for batch in step]
    assert all(len(step) == accumulation for step in out)
    assert all(len(batch["labels"]) == 4 for batch in batches)
    trained = [
        row[mask.bool()].tolist()
        for batch in batches
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    wanted = selected_rows(candidates)
    assert trained == wanted[: len(trained)]
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["waiting"] for log in logs][-1] == len(wanted) - len(trained) < 4
    assert len(logs) == steps and logs[-1]["learning_rate"] == pytest.approx(1e-2 / steps)


def test_training_is_that_of_the_plain_trainer_on_those_batches(tmp_path):
    trainer = filling(tmp_path, fixed(), max_steps=3)
    trainer.model = trainer.model_wrapped = tiny_llama()
    _, out = spied(trainer)
    trainer.train()
    batches = [{k: v for k, v in batch.items() if k != TASK} for step in out for batch in step]
    plain = InOrder(
        model=tiny_llama(), args=arguments(tmp_path), train_dataset=Rows(1), batches=batches
    )
    plain.train()
    for ours, theirs in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert (ours - theirs).abs().max() < 1e-2 * 1e-3  # of a step's size


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_filling_is_the_one_that_never_stopped(tmp_path, stop):
    def run(path, resume=None, until=6):
        events = []
        trainer = filling(
            path,
            "oasis",
            Rows(52),
            events,
            gradient_accumulation_steps=2,
            max_steps=6,
            save_strategy="steps",
            save_steps=1,
        )

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step >= until

        trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=resume)
        selected = [event["selected"] for event in events if event["type"] == "selection"]
        losses = [event["loss"] for event in events if event["type"] == "step"]
        return selected, losses, trainer

    whole, losses, first = run(tmp_path / "whole")
    before, _, _ = run(tmp_path / "cut", until=stop)
    after, rest, second = run(tmp_path / "cut", tmp_path / "cut" / f"checkpoint-{stop}")
    assert len(whole) > 13 * 2  # more than two passes
    assert before + after == whole and rest == losses[stop:]
    ours, theirs = second.model.state_dict(), first.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


class Endless(IterableDataset):
    """Has no length, and ends."""

    def __iter__(self):
        return iter(Rows(20).items)


def test_data_without_a_length_and_a_policy_without_a_ratio_need_max_steps(tmp_path):
    trainer = filling(tmp_path, fixed(), Endless(), max_steps=5)
    trainer.train()
    assert trainer.state.global_step == 5 and trainer.selection_counts.candidates > 40
    with pytest.raises(ValueError, match="max_steps: got -1.*says no ratio"):
        filling(tmp_path, Fixed([]), max_steps=-1)


@pytest.mark.shows("Modes", '`mode="fill"` with packed rows, or "epoch" strategies', "refused")
def test_what_does_not_go_with_it(tmp_path):
    with pytest.raises(ValueError, match="mode: got 'full', expected one of step, fill"):
        SelectionTrainer(model=tiny_llama(), args=arguments(tmp_path), mode="full")
    with pytest.raises(ValueError, match="save_strategy: got 'epoch'.*mode='fill'"):
        filling(tmp_path, "oasis", save_strategy="epoch")
    nothing = Fixed([torch.zeros(4, dtype=torch.bool)])
    with pytest.raises(ValueError, match="nothing was selected of a whole pass"):
        filling(tmp_path, nothing, Rows(8)).train()

    class Flat(DataCollatorWithFlattening):
        def __call__(self, rows):
            keys = ("input_ids", "labels")
            return super().__call__([{key: row[key].tolist() for key in keys} for row in rows])

    packed = filling(tmp_path, "oasis")
    packed.data_collator = Flat(return_tensors="pt")
    with pytest.raises(ValueError, match="mode: got 'fill'.*expected mode='step'"):
        packed.train()


def test_a_checkpoint_of_the_other_mode_is_refused(tmp_path):
    saves = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    filling(tmp_path, "full", **saves).train()
    other = SelectionTrainer(
        model=tiny_llama(),
        args=arguments(tmp_path),
        train_dataset=Rows(48),
        data_collator=Pad(),
        policy="full",
    )
    with pytest.raises(ValueError, match="mode: got 'step', but .* was saved with 'fill'"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.shows("Modes", '`mode="step"`: warm-up', "counted in steps that train")
def test_the_warm_up_is_counted_in_steps_that_train(tmp_path):
    masks = [[1] * 4, [0] * 4, [0] * 4, [1] * 4, [1] * 4, [0] * 4, [1] * 4]
    trainer = SelectionTrainer(
        model=tiny_llama(),
        args=arguments(
            tmp_path, max_steps=7, warmup_steps=2, lr_scheduler_type="constant_with_warmup"
        ),
        train_dataset=Rows(48),
        data_collator=Pad(),
        policy=Fixed([torch.tensor(mask, dtype=torch.bool) for mask in masks]),
    )
    rates = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
            rates.append(optimizer.param_groups[0]["lr"])

    trainer.add_callback(Watch())
    trainer.train()
    assert rates == pytest.approx([0, 0.5e-2, 0.5e-2, 0.5e-2, 1e-2, 1e-2, 1e-2])
