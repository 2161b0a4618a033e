"""What is under `training`: passed on to TrainingArguments, or refused by name before a run."""

from __future__ import annotations

import re

import pytest
import tiny_text

from oasis import cli
from oasis.lab.arguments import check, training_arguments
from oasis.lab.config import RunConfig
from oasis.lab.dry_run import dry_run
from oasis.lab.record.log import read_events
from oasis.lab.run import run


def config(folder, **more) -> RunConfig:
    base = {"name": "one", "out": str(folder), "tasks": tiny_text.NAMES, "arrivals": [24, 32]}
    base |= {"held_out": 4, "batch_size": 8, "rank": 2, "dtype": "float32", "device": "cpu"}
    return RunConfig(**{**base, "logging_steps": 0, "policy": "random", **more})


def arguments(settings: RunConfig):
    return training_arguments(settings, 7, cpu=True, progress=False)


def test_other_fields_pass_on_and_defaults_give_way(tmp_path):
    plain = arguments(config(tmp_path))
    assert (plain.weight_decay, plain.report_to, plain.max_steps) == (0.0, [], 7)
    given = {"weight_decay": 0.1, "adam_beta2": 0.9, "optim": "sgd"}
    passed = arguments(config(tmp_path, training=given))
    assert (passed.weight_decay, passed.adam_beta2, passed.optim) == (0.1, 0.9, "sgd")


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"wieght_decay": 0.1}, "training.wieght_decay: unknown setting; .*'weight_decay'"),
        ({"learning_rate": 0.1}, "training.learning_rate: set `learning_rate`"),
        ({"num_train_epochs": 3}, "training.num_train_epochs: the stream decides"),
        ({"eval_strategy": "steps"}, "training.eval_strategy: a run evaluates at its task bound"),
        ({"gradient_accumulation_steps": 0}, "training.gradient_accumulation_steps: got 0"),
        ({"gradient_accumulation_steps": "2"}, "training.gradient_accumulation_steps: got '2'"),
    ],
)
def test_what_is_refused_by_name(tmp_path, training, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        check(config(tmp_path, training=training))


def test_a_value_that_transformers_refuses_is_said_before_the_folder_is_there(tmp_path):
    settings = config(tmp_path / "runs", training={"optim": "nonsense"})
    with pytest.raises(ValueError, match="^training: .*nonsense"):
        run(settings, progress=False, workspace=tiny_text.workspace(settings))
    assert not (tmp_path / "runs").exists()


def test_the_command_names_file_and_line(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("tasks: [bbc]\ntraining:\n  report_to: none\n  wieght_decay: 0.1\n")
    assert cli.main(["train", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"run\.yaml:4: training\.wieght_decay: unknown setting", said)


def test_accumulation_makes_steps_of_several_batches(tmp_path):
    """Boundaries and the end count in steps; what was seen at a boundary is what belongs to it."""
    more = {"training": {"gradient_accumulation_steps": 2}, "iterations_per_sample": 0.25}
    settings = config(tmp_path, **more)
    result = run(settings, progress=False, workspace=tiny_text.workspace(settings))
    events = read_events(settings.directory / "events.jsonl")
    kinds = [event["type"] for event in events]
    assert result.finished and result.steps == 7 == kinds.count("step")  # of 14 batches
    assert events[0]["boundaries"] == [3, 7] and kinds.count("selection") == 14
    before_first = kinds[: kinds.index("evaluation", kinds.index("step"))]
    assert before_first.count("selection") == 6  # the first task's 24 arrivals
    told = list(dry_run(settings, tiny_text.workspace(settings)))
    assert "7 steps, 112 candidates in batches of 8, about 28 samples" in "\n".join(told)
    assert [line.split(",")[0] for line in told[:2]] == [
        "colours: until step 3",
        "animals: until step 7",
    ]


def test_batches_that_are_no_whole_step_are_said_and_too_long_a_step_is_refused(tmp_path, caplog):
    accumulate = {"gradient_accumulation_steps": 5}
    settings = config(tmp_path, training=accumulate, iterations_per_sample=0.25)
    result = run(settings, progress=False, workspace=tiny_text.workspace(settings))
    assert result.finished and result.steps == 2
    assert "the last 4 candidate batches" in caplog.text
    long = config(tmp_path, name="two", training={"gradient_accumulation_steps": 99})
    with pytest.raises(ValueError, match="got 99, expected at most the 7 candidate batches"):
        run(long, progress=False, workspace=tiny_text.workspace(long))
    assert not long.directory.exists()


@pytest.mark.parametrize("cached", [False, True])
def test_checkpointed_activations_train_to_the_same_weights(tmp_path, cached):
    """Memory for time: the gradients are those of a run without it."""
    more = {"cache_frozen": cached, "lora_layers": 2}
    losses = []
    for name, training in (("kept", {}), ("again", {"activation_checkpointing": True})):
        settings = config(tmp_path, name=name, training=training, **more)
        run(settings, progress=False, workspace=tiny_text.workspace(settings))
        events = read_events(settings.directory / "events.jsonl")
        losses.append([event["loss"] for event in events if event["type"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(set(losses[0])) > 1
