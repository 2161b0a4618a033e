"""A run with mode=fill: full batches, the steps that the ratio makes, resumed in a filling."""

import pytest
from tiny_text import NAMES, workspace

from oasis.lab.config import RunConfig
from oasis.lab.record.log import read_events
from oasis.lab.run import run
from oasis.lab.summary import summary


def config(out, **changes):
    settings = {
        **{"out": str(out), "tasks": NAMES, "arrivals": [40, 24], "held_out": 8, "batch_size": 8},
        **{"model": "tiny", "rank": 2, "device": "cpu", "dtype": "float32", "logging_steps": 0},
        **{"mode": "fill", "ratio": 0.5},
    }
    return RunConfig.from_mapping({**settings, **changes})


def events_of(settings):
    times = {"seconds": 0, "score_seconds": 0}
    return [{**event, **times} for event in read_events(settings.directory / "events.jsonl")]


def test_every_step_trains_on_a_full_batch(tmp_path):
    settings = config(tmp_path)
    result = run(settings, progress=False, workspace=workspace(settings))
    events = events_of(settings)
    steps = [event for event in events if event["type"] == "step"]
    # 5 and 3 candidate batches of the tasks, of which half of the samples train.
    assert events[0]["boundaries"] == [2, 4] and len(steps) == 4
    assert [step["samples"] for step in steps] == [8] * 4
    found = [(e["step"], e["after_task"]) for e in events if e["type"] == "evaluation"]
    assert found == [(0, -1), (2, 0), (4, 1)]
    chosen = sum(sum(e["selected"]) for e in events if e["type"] == "selection")
    assert chosen == result.selected >= 32


def test_what_still_waits_is_not_said_to_be_trained_on(tmp_path):
    settings = config(tmp_path, ratio=0.7)
    result = run(settings, progress=False, workspace=workspace(settings))
    steps = [event for event in events_of(settings) if event["type"] == "step"]
    assert result.trained == sum(step["samples"] for step in steps) == 8 * len(steps)
    waited = result.selected - result.trained
    assert 0 < waited < 8
    said = list(summary(result))[-1]
    assert said.startswith(f"trained on {result.trained} of {result.candidates} samples in")
    assert said.endswith(f"{waited} selected ones still waited for more")


def test_a_run_that_stops_in_a_filling_goes_on_to_what_it_would_have_been(tmp_path):
    whole = config(tmp_path, name="whole", policy="random")
    run(whole, progress=False, workspace=workspace(whole))
    parts = config(tmp_path, name="parts", policy="random", stop_after=1)
    run(parts, progress=False, workspace=workspace(parts))
    rest = parts.replace(stop_after=0, resume=True)
    run(rest, progress=False, workspace=workspace(rest))
    expected, got = events_of(whole), events_of(parts)
    assert [e["type"] for e in got] == [e["type"] for e in expected]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.get("item") == theirs.get("item") and ours.get("loss") == theirs.get("loss")


def test_a_stream_that_fills_no_step(tmp_path):
    settings = config(tmp_path, ratio=0.05)
    with pytest.raises(ValueError, match="mode: got 'fill'.* 0.05 of 8 candidate batches"):
        run(settings, progress=False, workspace=workspace(settings))
