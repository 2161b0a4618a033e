"""The record: every event typed once, one reader, a version; damage is named by its path."""

from __future__ import annotations

import json

import pytest
import tiny_text
from pydantic import ConfigDict, TypeAdapter
from runs_on_disk import evaluation, made_up, start, step, write_events

from oasis import cli
from oasis.lab.config import RunConfig
from oasis.lab.record import manifest
from oasis.lab.record.accuracy import a_avg, a_last, accuracy_of, standard_error
from oasis.lab.record.events import KINDS, VERSION, Event, parse
from oasis.lab.record.log import end_event, read, read_events
from oasis.lab.report.runs import Run
from oasis.lab.run import run


def finished(folder, policy: str = "oasis", **changes):
    base = {"name": policy, "out": str(folder), "tasks": tiny_text.NAMES, "arrivals": [24, 32]}
    base |= {"held_out": 4, "batch_size": 8, "rank": 2, "dtype": "float32", "device": "cpu"}
    settings = RunConfig(**base, logging_steps=0, policy=policy, save_steps=2, **changes)
    return settings, run(settings, progress=False, workspace=tiny_text.workspace(settings))


def test_a_run_writes_what_the_types_say_and_nothing_else(tmp_path):
    """Strict, with no field beside: nothing is written that nobody can read, nor read unwritten."""
    settings, result = finished(tmp_path, probes=[1], rescore=0.5)
    strict = TypeAdapter(Event, config=ConfigDict(strict=True, extra="forbid"))
    lines = (settings.directory / "events.jsonl").read_text().splitlines()
    events = [strict.validate_json(line) for line in lines]
    assert {event["type"] for event in events} == {*KINDS}
    first, last = events[0], events[-1]
    assert first["version"] == VERSION and first["held_out"] == dict.fromkeys(tiny_text.NAMES, 4)
    from oasis.lab.record import events as types

    for event in events:  # every field that there is a type for
        kind = getattr(types, event["type"].capitalize())
        # Of rows of one's own and free text alone: tests/lab/test_own_run.py; of macro accuracy.
        own = {"start": {"data", "rows", "answers"}, "evaluation": {"loss"}, "probe": {"loss"}}
        own = own.get(event["type"], set())
        assert set(event) == set(kind.__annotations__) - own, event["type"]
    # What the run says of itself is what a report makes of its record.
    loaded = Run.load(settings.directory)
    assert (loaded.a_last, loaded.a_avg) == (result.a_last, result.a_avg)
    assert (last["a_last"], last["a_avg"]) == (result.a_last, result.a_avg)
    assert loaded.standard_error == standard_error(result.history[-1], first["held_out"])
    assert loaded.candidates == result.candidates and loaded.selected == result.selected
    assert manifest.read(settings.directory / "adapter")["version"] == VERSION


def test_an_accuracy_is_of_answers_or_of_examples():
    answers = {"common": [90, 100], "rare": [1, 4]}
    assert accuracy_of(answers, "macro") == pytest.approx((0.9 + 0.25) / 2)
    assert accuracy_of(answers, "micro") == 91 / 104
    # Held-out examples that are balanced: as frequent as among those trained on.
    frequency = {"common": 30, "rare": 10, "never held out": 5}
    assert accuracy_of(answers, "micro", frequency) == pytest.approx((30 * 0.9 + 10 * 0.25) / 40)
    assert accuracy_of(answers, "micro", {"other": 3}) == 91 / 104
    with pytest.raises(ValueError, match="average: got 'mean'"):
        accuracy_of(answers, "mean")


def test_the_record_has_what_both_accuracies_come_from(tmp_path):
    for accuracy in ("micro", "macro"):
        settings, result = finished(tmp_path / accuracy, accuracy=accuracy)
        events = read_events(settings.directory / "events.jsonl")
        counts = events[0].get("answers")
        assert (counts is not None) == (accuracy == "macro")
        if counts is not None:
            assert {name: sum(c.values()) for name, c in counts.items()} == {
                "colours": 24, "animals": 32}  # fmt: skip
        last = [event for event in events if event["type"] == "evaluation"][-1]
        for name, answers in last["answers"].items():
            assert sum(of for _, of in answers.values()) == 4
            assert last["accuracy"][name] == accuracy_of(answers, accuracy)
        loaded = Run.load(settings.directory)
        assert loaded.a_last_by(accuracy) == pytest.approx(result.a_last)


def test_a_sample_is_told_with_its_text_when_it_is_met_first(tmp_path):
    settings, _ = finished(tmp_path)
    events = read_events(settings.directory / "events.jsonl")
    told = {}
    for event in events:
        if event["type"] == "selection":
            for key, text in zip(event["key"], event["text"], strict=True):
                assert (text is None) == (key in told)
                told.setdefault(key, text)
    assert all(text.startswith("Text : ") and " \u2192 " in text for text in told.values())


def test_averages_by_hand():
    history = [{"a": 0.5}, {"a": 0.4, "b": 0.8}]
    assert a_last(history, ["a", "b"]) == pytest.approx(0.6)
    assert a_avg(history, ["a", "b"]) == pytest.approx((0.5 + 0.6) / 2)
    expected = (0.4 * 0.6 / 10 + 0.8 * 0.2 / 40) ** 0.5 / 2
    assert standard_error(history[1], {"a": 10, "b": 40}) == pytest.approx(expected)
    with pytest.raises(ValueError, match="got 2 boundaries, expected 3"):
        a_avg(history, ["a", "b", "c"])


def test_a_record_without_a_version_is_read_as_the_first(tmp_path):
    path = made_up(tmp_path / "old", "oasis", batches=2)
    assert "version" not in (path / "events.jsonl").read_text()
    run = Run.load(path)
    assert run.finished and not run.unreadable and run.held_out["news"] == 400  # from the config


def test_a_later_version_an_empty_and_a_torn_record_are_named_and_the_rest_comes(
    tmp_path, caplog, capsys
):
    good = made_up(tmp_path / "good", "oasis", batches=2)
    later = write_events(tmp_path / "later", [start("random", version=VERSION + 1)])
    empty = write_events(tmp_path / "empty", [])
    torn = write_events(tmp_path / "torn", [start("full"), step(1)]) / "events.jsonl"
    torn.write_text(torn.read_text()[:-9])
    out = tmp_path / "page.html"
    folders = [str(good), str(later), str(empty), str(torn.parent)]
    assert cli.main(["report", *folders, "--out", str(out)]) == 0
    assert (
        f"left out: {later / 'events.jsonl'}: got version {VERSION + 1}, expected at most {VERSION}"
        in caplog.text
    )
    assert f"left out: {empty / 'events.jsonl'}: the record is empty" in caplog.text
    assert f"{torn}: 1 line cannot be read" in caplog.text
    assert out.exists() and str(good) not in caplog.text
    assert cli.main(["report", str(later), "--out", str(out)]) == 2
    assert "none of them can be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "should be an object"),
        ('{"no": "type"}', "type"),
        ('{"type": "step", "step": "1"}', "step: "),
        (json.dumps(evaluation(0, {"a": "high"})), "accuracy.a: "),
    ],
)
def test_a_line_that_is_no_event_says_why(tmp_path, line, says):
    with pytest.raises(ValueError, match=says) as caught:
        parse(line)
    assert "\n" not in str(caught.value)
    path = write_events(tmp_path / "run", [start("oasis")]) / "events.jsonl"
    path.write_text(path.read_text() + line + "\n" + json.dumps(step(1)) + "\n")
    record = read(path)
    assert len(record.damage) == 1 and [e["type"] for e in record.events] == ["start", "step"]
    with pytest.raises(ValueError, match=f"^{path}: line 2 is damaged"):
        read_events(path)


def test_events_of_a_kind_to_come_pass_by(tmp_path):
    assert parse('{"type": "weather", "sun": true}') is None
    path = write_events(tmp_path / "run", [start("oasis"), {"type": "weather"}, step(1)])
    record = read(path / "events.jsonl")
    assert len(record.events) == 2 and not record.damage
    assert end_event(path / "events.jsonl") is None


def test_a_manifest_that_is_damaged_is_said(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    assert manifest.read(tmp_path / "a") is None and not caplog.text  # somebody else's folder
    manifest.seal(tmp_path / "a", step=3)
    assert manifest.read(tmp_path / "a")["step"] == 3 and not caplog.text
    path = tmp_path / "a" / manifest.NAME
    for text in (path.read_text().replace("3", "4", 1), "{", "[]"):
        path.write_text(text)
        caplog.clear()
        assert manifest.read(tmp_path / "a") is None
        assert f"{path} is damaged: the folder is left alone" in caplog.text
