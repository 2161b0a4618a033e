"""The settings of what scoring costs, in whole runs."""

import pytest
import tiny_text
from tiny_text import NAMES, workspace

from oasis.lab import preflight
from oasis.lab.config import RunConfig
from oasis.lab.dry_run import dry_run
from oasis.lab.record.log import read_events
from oasis.lab.report.runs import Run
from oasis.lab.run import run
from oasis.train.candidates import ScoredCandidates

CHECKPOINTED = {"training": {"gradient_checkpointing": True}}


def config(out, **changes):
    settings = {
        **{"out": str(out), "tasks": NAMES, "arrivals": [40, 24], "held_out": 8, "batch_size": 8},
        **{"model": "tiny", "rank": 2, "device": "cpu", "dtype": "float32", "logging_steps": 0},
    }
    return RunConfig.from_mapping({**settings, **changes})


def ran(settings):
    run(settings, progress=False, workspace=workspace(settings))
    events = read_events(settings.directory / "events.jsonl")
    return events[-1], [event for event in events if event["type"] == "selection"]


def test_the_scoring_forward_is_trained_on(tmp_path):
    plain, chose = ran(config(tmp_path, name="plain", **CHECKPOINTED))
    reused, as_well = ran(config(tmp_path, name="reused", reuse_forward=True, **CHECKPOINTED))
    assert [e["selected"] for e in as_well] == [e["selected"] for e in chose]
    assert reused["score_flops"] == plain["score_flops"]
    assert reused["train_flops"] < 0.75 * plain["train_flops"]


def test_checkpointing_is_counted_and_ends_with_its_run(tmp_path):
    plain = config(tmp_path, name="plain")
    shared = workspace(plain)
    run(plain.replace(name="checkpointed", **CHECKPOINTED), progress=False, workspace=shared)
    assert not any(getattr(m, "gradient_checkpointing", False) for m in shared.base.modules())
    run(plain, progress=False, workspace=shared)
    ends = [read_events(tmp_path / name / "events.jsonl")[-1] for name in ("checkpointed", "plain")]
    assert ends[0]["train_flops"] > 1.2 * ends[1]["train_flops"]
    assert ends[0]["score_flops"] == ends[1]["score_flops"]


def test_returning_candidates_are_left_out(tmp_path):
    every, _ = ran(config(tmp_path, name="every"))
    fewer, events = ran(config(tmp_path, name="fewer", rescore=0.5))
    left = [row for event in events for row in event["unscored"]]
    assert left and all(not e["selected"][row] for e in events for row in e["unscored"])
    assert fewer["score_flops"] < every["score_flops"]
    # They were no candidates: neither of the trainer's count nor of the report's.
    loaded = Run.load(tmp_path / "fewer")
    assert loaded.candidates == fewer["candidates"] == every["candidates"] - len(left)
    assert sum(met for _, met in loaded.per_task()) == loaded.candidates


def test_another_model_scores(tmp_path):
    folder = tmp_path / "small"
    tiny_text.model(layers=1).save_pretrained(folder)
    tiny_text.tokenizer().save_pretrained(folder)
    ours, _ = ran(config(tmp_path, name="ours"))
    beside, _ = ran(config(tmp_path, name="beside", score_with=str(folder)))
    assert 0 < beside["score_flops"] < ours["score_flops"]


def test_a_part_of_the_blocks_scores(tmp_path):
    whole, _ = ran(config(tmp_path, name="whole"))
    part, _ = ran(config(tmp_path, name="part", score_depth=1, score_batch_size=3))
    assert part["score_flops"] < whole["score_flops"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rescore": 1.0}, "rescore: got 1.0, expected a number between 0 and 1 or null"),
        ({"score_with": "./nowhere"}, "score_with: got './nowhere', expected 'smollm2', a folder"),
        ({"reuse_forward": True}, "reuse_forward: got True without activation checkpointing"),
    ],
)
def test_what_cannot_be(tmp_path, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        settings = config(tmp_path, **changes)
        run(settings, progress=False, workspace=workspace(settings))
    assert not (tmp_path / "run").exists()  # for the next one to go on with


def test_a_dry_run_refuses_what_the_run_does(tmp_path):
    settings = config(tmp_path, reuse_forward=True, mode="fill", **CHECKPOINTED)
    with pytest.raises(ValueError, match="reuse_forward: got True with mode='fill'"):
        list(dry_run(settings, workspace(settings)))
    settings = config(tmp_path, reuse_forward=True, **CHECKPOINTED)
    assert any("8 steps" in line for line in dry_run(settings, workspace(settings)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"score_depth": 1}, {"reuse_forward": True, **CHECKPOINTED}])
def test_a_dry_run_scores_as_the_run_does(tmp_path, monkeypatch, changes):
    asked = []
    scores = ScoredCandidates._scores

    def watched(self, batch, needs, count):
        asked.append((self.score_depth, self.reuse_forward, count))
        return scores(self, batch, needs, count)

    monkeypatch.setattr(ScoredCandidates, "_scores", watched)
    settings = config(tmp_path, **changes)
    assert any("s to score" in line for line in dry_run(settings, workspace(settings)))
    how = changes.get("score_depth"), changes.get("reuse_forward", False)
    assert asked == [(*how, settings.batch_size)] * 2  # the first time warms up


def test_a_policy_that_scores_nothing_is_refused_before_all_else():
    message = "rescore: got 0.5, but the policy 'random' scores nothing; in a comparison set it in"
    with pytest.raises(ValueError, match=message):
        preflight.check(RunConfig(policy="random", rescore=0.5))


def test_damaged_weights_are_named(tmp_path):
    folder = tmp_path / "small"
    tiny_text.model(layers=1).save_pretrained(folder)
    tiny_text.tokenizer().save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    settings = config(tmp_path, score_with=str(folder))
    with pytest.raises(OSError, match="score_with: got .*small"):
        run(settings, progress=False, workspace=workspace(settings))
