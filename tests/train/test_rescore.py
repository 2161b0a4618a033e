"""Candidates that return with a low last score are not scored again."""

import pytest
import torch
from tiny_models import tiny_llama
from tiny_training import Pad, Rows, arguments

from oasis import policies
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import ITEM
from oasis.train.batch.subbatch import take
from oasis.train.head import Head
from oasis.train.last_scores import LastScores
from oasis.train.signals.compute import compute


class Numbered(Rows):
    def __getitem__(self, i):
        return {**super().__getitem__(i), ITEM: i}


class Named(Pad):
    def __call__(self, items):
        return {**super().__call__(items), ITEM: torch.tensor([i[ITEM] for i in items])}


class Watched(policies.Policy):
    """A policy that keeps what it is told."""

    def __init__(self, inner):
        self.inner, self.name, self.needs, self.told = inner, inner.name, inner.needs, []

    def observe(self, signals):
        self.told.append(signals)
        return self.inner.observe(signals)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


def trainer_of(path, policy, events=None, data=Numbered, collate=Named, **options):
    own = {name: options.pop(name) for name in ("reuse_forward", "rescore") if name in options}
    return SelectionTrainer(
        model=tiny_llama(),
        args=arguments(path, **{"max_steps": 6, **options}),
        train_dataset=data(8),
        data_collator=collate(),
        policy=policy,
        on_event=None if events is None else events.append,
        **own,
    )


def test_new_ones_and_the_best_of_the_others_are_worth_a_forward():
    last = LastScores(0.5)
    assert last.worth([4, 5, 6]).tolist() == [0, 1, 2]
    last.scores = {4: 1.0, 5: 3.0, 6: 2.0}
    assert last.worth([4, 7, 5, 6]).tolist() == [1, 2, 3]  # half of three, rounded up
    assert last.worth([6, 5]).tolist() == [1]
    assert LastScores(0.1).worth([4]).tolist() == [0]
    again = LastScores(0.5)
    again.load_state_dict(last.state_dict())
    assert again.scores == last.scores


@pytest.mark.shows(
    "Candidates that return (`rescore`)", "batches that say which row is which", "works"
)
@pytest.mark.parametrize("name", ["oasis", "gradnorm"])
def test_a_candidate_of_low_last_score_is_not_scored_again(tmp_path, name):
    """Eight rows by fours: from the second epoch on all candidates return, and half is scored."""
    policy, events, before = Watched(policies.create(name, 0.5, 3)), [], []
    trainer = trainer_of(tmp_path, policy, events, rescore=0.5)
    select = trainer._select
    trainer._select = lambda batch: (
        before.append(dict(trainer._selection.last.scores)) or select(batch)
    )
    trainer.train()
    scored = [(told.tokens > 0).tolist() for told in policy.told]
    assert [sum(one) for one in scored] == [4, 4, 2, 2, 2, 2]
    chosen = [event for event in events if event["type"] == "selection"]
    for event, one, known in zip(chosen, scored, before, strict=True):
        rows = list(zip(event["item"], one, event["selected"], strict=True))
        assert all(was for _, was, kept in rows if kept)
        left = [known[item] for item, was, _ in rows if not was]
        again = [known[item] for item, was, _ in rows if was and item in known]
        assert not left or max(left) <= min(again)
    assert trainer.selection_counts.candidates == 16
    assert 0 < trainer.selection_counts.selected <= 8


def test_what_is_told_of_the_scored_is_of_them(tmp_path):
    policy, seen = Watched(policies.create("gradnorm", 0.5, 3)), []
    trainer = trainer_of(tmp_path, policy, rescore=0.5, learning_rate=0.0)
    select = trainer._select
    trainer._select = lambda batch: seen.append(dict(batch)) or select(batch)
    trainer.train()
    rows = (policy.told[3].tokens > 0).nonzero().flatten()
    batch = {key: value for key, value in seen[3].items() if "oasis" not in key}
    expected = compute(tiny_llama(), take(batch, rows), Head(), frozenset({"gram"}))["gram"]
    found = policy.told[3].gram[rows][:, rows]
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max() > 0


@pytest.mark.shows("Candidates that return (`rescore`)", "checkpoints and resuming", "works")
def test_it_resumes_to_the_same_scores(tmp_path):
    def run(folder, steps, resume=None):
        options = {"save_strategy": "steps", "save_steps": 3, "max_steps": steps}
        trainer = trainer_of(tmp_path / folder, "oasis", rescore=0.5, **options)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole", 6)
    resumed = run("again", 6, str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed._selection.last.scores == whole._selection.last.scores
    assert len(whole._selection.last.scores) == 8
    assert vars(resumed.selection_counts) == vars(whole.selection_counts)
    whole.begin_selection()
    assert whole._selection.last.scores == {}


@pytest.mark.shows(
    "Candidates that return (`rescore`)",
    "batches without `oasis_item`, packed rows, policies that score nothing, `reuse_forward`",
    "refused",
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rescore": 1.0}, "rescore: got 1.0, expected a number between 0 and 1"),
        ({"rescore": True}, "rescore: got True, expected a number between 0 and 1"),
        ({"rescore": 0.5, "policy": "random"}, "policy 'random', which scores nothing"),
        ({"rescore": 0.5, "policy": "tive"}, "policy 'tive', which gives no scores to go by"),
        (
            {"rescore": 0.5, "reuse_forward": True, "gradient_checkpointing": True},
            "rescore: got 0.5 with reuse_forward",
        ),
    ],
)
def test_what_it_cannot_go_with_is_refused(tmp_path, options, message):
    policy = options.get("policy", "oasis")
    rest = {key: value for key, value in options.items() if key != "policy"}
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, policy, **rest)


def test_batches_that_do_not_say_which_row_is_which_are_refused(tmp_path):
    trainer = trainer_of(tmp_path, "oasis", data=Rows, collate=Pad, rescore=0.5)
    with pytest.raises(ValueError, match="rescore: got a batch without 'oasis_item'"):
        trainer.train()
