"""The state of a selection follows the training: anew with each, and left alone by all else."""

import pytest
import torch
from policy_signals import CLUSTERING
from tiny_models import tiny_llama
from tiny_training import Pad, Rows, arguments, selection_trainer

from oasis import policies
from oasis.names import COUNTERS
from oasis.train import SelectionTrainer


def trained(trainer, events):
    """What a training selected, and lost at each step."""
    events.clear()
    trainer.train()
    selected = [event["selected"] for event in events if event["type"] == "selection"]
    losses = [event["loss"] for event in events if event["type"] == "step"]
    return selected, losses, trainer.selection_counts.selected


def fresh(path, policy, events, eval_dataset=None, **options):
    """A trainer that makes its model anew for each training."""
    return SelectionTrainer(
        model_init=lambda: tiny_llama(dtype=torch.float32),
        args=arguments(path, **{"max_steps": 4, **options}),
        train_dataset=Rows(64),
        eval_dataset=eval_dataset,
        data_collator=Pad(),
        policy=policy,
        on_event=events.append,
    )


@pytest.mark.shows("State", "`train()` again, `hyperparameter_search`", "works: each begins anew")
@pytest.mark.parametrize("name", policies.names())
def test_each_training_begins_anew(tmp_path, name):
    events = []
    options = {"clusters": 2} if name in CLUSTERING else {}
    trainer = fresh(tmp_path, policies.create(name, 0.5, 3, **options), events)
    first = trained(trainer, events)
    assert first[2] > 0
    assert trained(trainer, events) == first
    assert trained(trainer, events) == first


def test_trials_of_a_search_are_the_same_training(tmp_path):
    """Of the same settings; before, each went on with the statistics of the one before."""
    pytest.importorskip("optuna")
    events = []
    trainer = fresh(tmp_path, "oasis", events, Rows(9, seed=5))
    found = []

    def objective(metrics):
        chosen = [event["selected"] for event in events if event["type"] == "selection"]
        found.append((metrics["eval_loss"], chosen))
        events.clear()
        return metrics["eval_loss"]

    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.01)},
        compute_objective=objective,
        n_trials=3,
        direction="minimize",
        backend="optuna",
    )
    assert found[0] == found[1] == found[2] and best.objective == found[0][0]
    assert len(found[0][1]) == 4 and any(map(any, found[0][1]))


def test_each_training_tells_its_own_length(tmp_path):
    policy = policies.create("infobatch", 0.5, 3)
    trainer = fresh(tmp_path, policy, [])
    for steps in (4, 6):
        trainer.args.max_steps = steps
        trainer.train()
        assert policy.total_batches == steps


@pytest.mark.shows("State", "`auto_find_batch_size`", "works: selection restarts with the training")
def test_selection_restarts_where_the_batch_did_not_fit(tmp_path):
    events = []
    trainer = fresh(tmp_path, "oasis", events, auto_find_batch_size=True)
    step, sizes = trainer.training_step, []

    def once(model, inputs, *args):
        sizes.append(trainer._train_batch_size)
        if len(sizes) == 3:
            raise RuntimeError("CUDA out of memory.")
        return step(model, inputs, *args)

    trainer.training_step = once
    trainer.train()
    size = sizes[-1]
    assert 1 < size < 4 and sizes.count(size) == 4
    counts, counters = trainer.selection_counts, trainer.policy.state_dict()["counters"]
    assert counts.batches == int(counters[COUNTERS["batches"]]) == 4
    assert counts.candidates == int(counters[COUNTERS["candidates"]]) == 4 * size
    last = [event["selected"] for event in events if event["type"] == "selection"][-4:]
    assert counts.selected == int(counters[COUNTERS["selected"]]) == sum(map(sum, last)) > 0


@pytest.mark.shows("State", "evaluation and prediction, in training and after", "works: left alone")
def test_evaluation_and_prediction_leave_it_alone(tmp_path):
    def run(evaluates):
        events = []
        options = {"eval_strategy": "steps", "eval_steps": 1} if evaluates else {}
        trainer = fresh(tmp_path, "oasis", events, Rows(9, seed=5), **options)
        found = trained(trainer, events)
        if evaluates:
            before = trainer.policy.state_dict()["statistics"].clone()
            trainer.evaluate()
            trainer.predict(trainer.eval_dataset)
            assert torch.equal(trainer.policy.state_dict()["statistics"], before)
        return found, trainer.selection_counts, len(events)

    assert run(True) == run(False)


@pytest.mark.shows(
    "Several processes",
    "resuming with another number of them",
    "works, and says so: each goes on from the file of its number, new ones begin anew",
)
def test_a_resume_with_another_number_of_processes_says_what_happens(tmp_path, caplog):
    saves = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    first = selection_trainer(tmp_path, tiny_llama(), "oasis", **saves)
    first._selection.processes = 2
    first.train()
    second = selection_trainer(tmp_path, tiny_llama(), "oasis", max_steps=3)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "saved by 2 processes and is resumed by 1: each goes on" in caplog.text
    assert second.selection_counts.candidates == 12
    caplog.clear()
    third = selection_trainer(tmp_path, tiny_llama(), "oasis", max_steps=3)
    third._selection.process = 1
    third.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "selection_state_1.pt: selection starts anew" in caplog.text
    assert third.selection_counts.candidates == 4
