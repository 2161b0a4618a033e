"""The trainer mixin: gradients, empty steps, resuming, logging."""

import json
import math

import pytest
import torch
from policy_signals import CLUSTERING
from tiny_models import tiny_llama
from tiny_training import Fixed, InOrder, KeepGradients, Pad, Rows, arguments, selection_trainer
from transformers import Trainer, TrainerCallback

import oasis
from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import TASK
from oasis.train.head import Head
from oasis.train.signals.compute import compute


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_gradients_are_those_of_a_plain_step_on_the_selected(tmp_path, side, accumulation):
    masks = [[1, 0, 1, 0], [0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]]
    masks = [torch.tensor(m, dtype=torch.bool) for m in masks][: 1 if accumulation == 1 else 4]
    ours, keep = [], KeepGradients()
    trainer = selection_trainer(
        tmp_path,
        tiny_llama(),
        Fixed(masks),
        side,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
    )
    trainer.add_callback(keep)
    select = trainer._select
    seen = []

    def spy(batch):
        seen.append(batch)
        ours.append(select(batch))
        return ours[-1]

    trainer._select = spy
    loss = trainer.train().training_loss

    plain = [
        {k: v[m] for k, v in batch.items() if k != TASK}
        for batch, m in zip(seen, masks, strict=True)
        if m.any()
    ]
    reference, plain_keep = tiny_llama(), KeepGradients()
    args = arguments(tmp_path, gradient_accumulation_steps=len(plain), max_steps=1)
    plain_trainer = InOrder(
        model=reference, args=args, train_dataset=Rows(1), batches=plain, callbacks=[plain_keep]
    )
    plain_loss = plain_trainer.train().training_loss

    assert math.isclose(loss, plain_loss, rel_tol=1e-6)  # theirs is rounded to float32
    compared = 0
    for name, expected in plain_keep.steps[0].items():
        got = keep.steps[0][name]
        if expected is None:
            assert got is None
            continue
        compared += 1
        assert (got - expected).norm() <= 1e-6 * expected.norm(), name
        assert expected.norm() > 0
    assert compared == 8
    assert sum(len(b["labels"]) for b in ours if (b["labels"] != -100).any()) == sum(
        int(m.sum()) for m in masks
    )


def test_nothing_selected_moves_nothing_and_runs_as_many_passes(tmp_path):
    none, some = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    model = tiny_llama()
    before, forwards, backwards = [], [], []
    events = []
    # Steps: trained, empty, empty (Adam has momentum from the first).
    trainer = selection_trainer(
        tmp_path,
        model,
        Fixed([some, none, none, none, none, none]),
        on_event=events.append,
        gradient_accumulation_steps=2,
        weight_decay=0.1,
    )

    class Watch(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            before.append({n: p.detach().clone() for n, p in model.named_parameters()})

    trainer.add_callback(Watch())
    step = trainer.training_step

    def count(*args, **kwargs):
        forwards.append(1)
        loss = step(*args, **kwargs)
        backwards.append(loss.isfinite().item())
        return loss

    trainer.training_step = count
    trainer.train()
    after = dict(model.named_parameters())
    assert any(not torch.equal(before[0][n], before[1][n]) for n in after)
    for name in after:
        assert torch.equal(before[1][name], before[2][name])
        assert torch.equal(before[1][name], after[name])
    assert len(forwards) == 6 and backwards == [True] * 6
    steps = [e for e in events if e["type"] == "step"]
    assert [e["samples"] for e in steps] == [4, 0, 0]
    assert steps[0]["loss"] > 0 and steps[1]["loss"] is None
    losses = [r.get("loss") for r in trainer.state.log_history if "candidates" in r]
    assert losses[0] > 0 and losses[1:] == [None, None]


@pytest.mark.parametrize("name", policies.names())
def test_resuming_selects_what_never_stopping_selects(tmp_path, name):
    # Clusters that exist before the stop: two of them, of the first 8 samples.
    options = {"clusters": 2} if name in CLUSTERING else {}

    def run(path, steps, resume=None):
        events = []
        trainer = selection_trainer(
            path,
            tiny_llama(dtype=torch.float32, attention_dropout=0.2),
            policies.create(name, 0.25, 42, **options),
            n=64,
            on_event=events.append,
            gradient_accumulation_steps=2,
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
        )
        if steps < 6:

            class Stop(TrainerCallback):
                def on_step_end(self, args, state, control, **kwargs):
                    control.should_training_stop = state.global_step >= steps

            trainer.add_callback(Stop())
        trainer.train(resume_from_checkpoint=resume)
        selections = [(e["batch"], e["step"], e["selected"]) for e in events if "selected" in e]
        losses = [e["loss"] for e in events if e["type"] == "step"]
        return selections, losses, trainer

    whole, losses, a = run(tmp_path / "whole", 6)
    first, _, _ = run(tmp_path / "stopped", 3)
    second, losses_2, b = run(tmp_path / "stopped", 6, tmp_path / "stopped" / "checkpoint-3")
    assert len(whole) == 12 and len(first) == 6
    assert first + second == whole
    assert losses_2 == losses[3:]
    assert a.selection_counts == b.selection_counts


def test_a_training_resumed_at_its_last_step_is_at_its_end(tmp_path):
    saves = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    first = selection_trainer(tmp_path, tiny_llama(), "oasis", n=40, **saves)
    first.train()
    events = []
    second = selection_trainer(
        tmp_path, tiny_llama(), "oasis", n=40, on_event=events.append, **saves
    )
    output = second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (output.global_step, second.state.global_step, events) == (3, 3, [])
    assert second.selection_counts == first.selection_counts
    weights = first.model.state_dict()
    assert all(torch.equal(weights[k], v) for k, v in second.model.state_dict().items())


# Ten batches of four an epoch, and a step takes four of them: the third of each epoch gets two.
@pytest.mark.parametrize(
    ("length", "batches"),
    [({"num_train_epochs": 4, "max_steps": -1}, 40), ({"max_steps": 11}, 38)],
)
def test_a_policy_that_asks_is_told_the_length(tmp_path, length, batches):
    events = []
    trainer = selection_trainer(
        tmp_path,
        tiny_llama(),
        policies.create("infobatch", 0.25, 42, anneal=0.125),
        n=40,
        on_event=events.append,
        gradient_accumulation_steps=4,
        **length,
    )
    trainer.train()
    assert trainer.policy.total_batches == batches == trainer.selection_counts.batches
    # At 25 % an eighth of the batches, whole ones, is not pruned, and paid for before.
    counts, whole = [sum(e["selected"]) for e in events if "selected" in e], batches // 8
    assert counts[-whole:] == [4] * whole and max(counts[:-whole]) < 4
    assert sum(counts) == batches


def test_a_length_of_ones_own_is_left_alone(tmp_path):
    policy = policies.create("infobatch", 0.25, total_batches=100)
    selection_trainer(tmp_path, tiny_llama(), policy, max_steps=1).train()
    assert policy.total_batches == 100


def test_a_checkpoint_of_another_policy_is_refused(tmp_path):
    trainer = selection_trainer(
        tmp_path, tiny_llama(), "random", max_steps=1, save_strategy="steps", save_steps=1
    )
    trainer.train()
    other = selection_trainer(tmp_path, tiny_llama(), "full", max_steps=2)
    with pytest.raises(ValueError, match="saved by 'random'"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_scores_only_what_the_policy_needs(tmp_path, monkeypatch):
    calls = []
    real = oasis.train.candidates.compute
    monkeypatch.setattr(
        "oasis.train.candidates.compute", lambda *a, **k: calls.append(1) or real(*a, **k)
    )
    selection_trainer(tmp_path, tiny_llama(), "random", max_steps=2).train()
    assert calls == []
    selection_trainer(tmp_path, tiny_llama(), "oasis", max_steps=2).train()
    assert calls == [1, 1]


def test_scores_by_the_gradients_of_the_last_block(tmp_path):
    events = {}
    for layer in ("head", "last_block"):
        events[layer] = []
        trainer = SelectionTrainer(
            model=tiny_llama(),
            args=arguments(tmp_path / layer, max_steps=2),
            train_dataset=Rows(48),
            data_collator=Pad(),
            policy="oasis",
            layer=layer,
            on_event=events[layer].append,
        )
        batches, select = [], trainer._select
        trainer._select = lambda batch, s=select, b=batches: (b.append(batch), s(batch))[1]
        trainer.train()
        first = next(e for e in events[layer] if e["type"] == "selection")
        batch = {k: v for k, v in batches[0].items() if k != TASK}
        gram = compute(tiny_llama(), batch, Head(), frozenset({"gram"}), layer=layer)["gram"]
        assert first["informativeness"] == pytest.approx(gram.diagonal().tolist(), rel=1e-5)
    assert [e["informativeness"] for e in events["head"] if e["type"] == "selection"] != [
        e["informativeness"] for e in events["last_block"] if e["type"] == "selection"
    ]


def test_logs_and_events(tmp_path):
    events = []
    trainer = selection_trainer(
        tmp_path, tiny_llama(), "oasis", on_event=events.append, max_steps=5
    )
    trainer.train()
    json.dumps(events, allow_nan=False)
    selections = [e for e in events if e["type"] == "selection"]
    assert [e["step"] for e in events] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert all(len(e["task"]) == len(e["selected"]) == 4 for e in selections)
    assert all(x >= 0 for e in selections for x in e["informativeness"])
    logs = [r for r in trainer.state.log_history if "candidates" in r]
    assert len(logs) == 5
    assert logs[-1]["candidates"] == 20
    assert logs[-1]["selected"] == sum(sum(e["selected"]) for e in selections)
    assert logs[-1]["ratio"] == logs[-1]["selected"] / 20
    assert {"threshold", "mean", "deviation", "skipped"} <= logs[-1].keys()


def test_a_non_finite_sample_is_skipped_and_counted(tmp_path, caplog):
    model = tiny_llama()
    poison = 7
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    for item in (data := Rows(48)).items:
        item["input_ids"][item["input_ids"] == poison] = 8
        item["labels"][item["labels"] == poison] = 8
    for i in range(0, 48, 4):
        data.items[i]["input_ids"][0] = poison
    events = []
    trainer = SelectionTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=12),
        train_dataset=data,
        data_collator=Pad(),
        policy=oasis.Selector(0.5),
        on_event=events.append,
    )
    trainer.train()
    selections = [e for e in events if e["type"] == "selection"]
    assert sum(e["skipped"] for e in selections) == 12 == trainer.selection_counts.skipped
    for event in selections:
        assert not any(
            s for s, i in zip(event["selected"], event["informativeness"], strict=True) if i is None
        )
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all() or "embed_tokens" in name


def test_progress_bar_shows_task_ratio_and_loss(tmp_path):
    trainer = SelectionTrainer(
        model=tiny_llama(),
        args=arguments(tmp_path, disable_tqdm=False, max_steps=2),
        train_dataset=Rows(8),
        data_collator=Pad(),
        policy="full",
        task_names=["a", "b", "c"],
    )
    bar = next(c for c in trainer.callback_handler.callbacks if hasattr(c, "describe"))
    trainer.train()
    shown = bar.describe()
    assert shown["task"] in "abc" and shown["ratio"] == "1.0000" and float(shown["loss"]) > 0


def test_what_ends_a_training_leaves_the_progress_bar_its_own_line(tmp_path, capsys):
    class Broken(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raise OSError("broken")

    trainer = selection_trainer(tmp_path, tiny_llama(), "full", disable_tqdm=False)
    trainer.add_callback(Broken())
    with pytest.raises(OSError, match="broken"):
        trainer.train()
    said = capsys.readouterr().err
    assert "/3 [" in said and said.endswith("\n")


def test_evaluates_with_the_same_loss_as_the_plain_trainer(tmp_path):
    ours = selection_trainer(tmp_path, tiny_llama(), "random")
    plain = Trainer(
        model=tiny_llama(), args=arguments(tmp_path), data_collator=Pad(), train_dataset=Rows(1)
    )
    data = Rows(9, seed=5)
    expected = plain.evaluate(data)["eval_loss"]
    assert math.isclose(ours.evaluate(data)["eval_loss"], expected, rel_tol=1e-6)


def test_bad_arguments(tmp_path):
    with pytest.raises(TypeError, match="policy"):
        selection_trainer(tmp_path, tiny_llama(), 3)
    with pytest.raises(ValueError, match="expected one of"):
        selection_trainer(tmp_path, tiny_llama(), "best")
    with pytest.raises(ValueError, match="ratio"):
        SelectionTrainer(
            model=tiny_llama(), args=arguments(tmp_path), policy=policies.Full(), ratio=0.5
        )
    with pytest.raises(ValueError, match="layer: got 'first', expected one of head, last_block"):
        SelectionTrainer(model=tiny_llama(), args=arguments(tmp_path), layer="first")
    wrong = selection_trainer(tmp_path, tiny_llama(), Fixed([torch.ones(3, dtype=torch.bool)]))
    with pytest.raises(ValueError, match=r"mask \(3,\)"):
        wrong.train()
