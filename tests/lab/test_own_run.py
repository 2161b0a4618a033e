"""A run on rows of one's own and on benchmarks' folders, from the command line to the report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tiny_folder

from oasis import cli
from oasis.lab.config import RunConfig
from oasis.lab.record.log import read_events

FAST = ("rank=2", "device=cpu", "dtype=float32", "batch_size=8", "learning_rate=1e-2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder.save(tmp_path_factory.mktemp("model"))


def train(folder, out, *arguments):
    return cli.main(["train", f"out={out}", "--model", folder, *FAST, *arguments])


def events_of(out, name="run"):
    return read_events(out / name / "events.jsonl")


def test_rows_are_trained_on_judged_and_drawn_by_one_command(folder, tmp_path, capsys):
    free = tiny_folder.write_rows(tmp_path / "free.jsonl", tiny_folder.numbers(40))
    closed = tiny_folder.write_rows(tmp_path / "closed.jsonl", tiny_folder.parities(40))
    assert train(folder, tmp_path, "--data", free, "--data", closed) == 0
    text = capsys.readouterr().out
    assert "free: 40 rows, 36 to train on, 4 held out" in text
    assert "closed: judged by its answers, no, yes" in text
    assert "free: held-out loss" in text and "closed: " in text
    start, *middle, end = events_of(tmp_path)
    assert start["tasks"] == ["free", "closed"] and start["held_out"] == {"free": 4, "closed": 4}
    assert start["boundaries"] == [5, 9] and len(start["data"]) == 64
    selections = [event for event in middle if event["type"] == "selection"]
    keys = [key for event in selections for key in event["key"]]
    assert len(keys) == len(set(keys)) == 72  # one pass, each row once
    assert {key.rpartition(":")[0] for key in keys} == {free, closed}
    assert [e["key"][0].startswith(free) for e in selections] == [True] * 5 + [False] * 4
    before, first, last = (e for e in middle if e["type"] == "evaluation")
    assert set(before["loss"]) == set(first["loss"]) == set(last["loss"]) == {"free"}
    assert set(last["accuracy"]) == {"closed"} and first["accuracy"] == {}
    assert last["loss"]["free"] < before["loss"]["free"]
    assert end["loss"] == last["loss"]["free"]
    assert end["a_last"] == last["accuracy"]["closed"] and end["candidates"] == 72
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert RunConfig.load(tmp_path / "run" / "config.yaml").data.path == [free, closed]


def test_free_text_alone_has_a_loss_and_no_accuracy(folder, tmp_path, capsys):
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(30))
    assert train(folder, tmp_path, "--data", rows, "epochs=2", "--no-report", "-q") == 0
    end = events_of(tmp_path)[-1]
    assert end["a_last"] is None and end["loss"] > 0 and end["candidates"] == 2 * 27
    captured = capsys.readouterr()
    assert "A_last" not in captured.out and captured.err == ""


def test_a_run_goes_on_with_the_same_rows_alone(folder, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    tiny_folder.write_rows(rows, tiny_folder.numbers(30))
    own = ("--data", str(rows), "--no-report", "-q", "save_steps=1")
    assert train(folder, tmp_path, *own, "name=whole") == 0
    assert train(folder, tmp_path, *own, "name=part", "stop_after=2") == 0
    tiny_folder.write_rows(rows, tiny_folder.numbers(31)[1:])
    assert train(folder, tmp_path, *own, "name=part", "--resume") == 2
    assert "data: the rows are not those" in capsys.readouterr().err
    tiny_folder.write_rows(rows, tiny_folder.numbers(30))
    assert train(folder, tmp_path, *own, "name=part", "--resume") == 0
    whole, part = (
        [e["key"] for e in events_of(tmp_path, name) if e["type"] == "selection"]
        for name in ("whole", "part")
    )
    assert whole == part


def test_dry_run_says_what_will_be_done_and_writes_nothing(folder, tmp_path, capsys):
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(40))
    assert train(folder, tmp_path / "out", "--data", rows, "--dry-run") == 0
    text = capsys.readouterr().out
    assert "rows: until step 5, judged by its loss on 4 held-out rows" in text
    assert "5 steps, 36 candidates in batches of 8, about 9 samples trained on" in text
    assert "LoRA trains" in text and "a step takes about" in text and "GiB" in text
    assert not (tmp_path / "out").exists()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


TRACE_ANSWERS = {
    "NumGLUE-ds": ("4", "5"),
    "ScienceQA": ("A\nBecause.", "B\nFor it is."),
    "Py150": ("return x", "import os"),
    "C-STANCE": ("A", "B"),
    "FOMC": ("A", "B"),
    "20Minuten": ("Ein Satz.", "Noch einer."),
    "NumGLUE-cm": ("4", "5"),
    "MeetingBank": ("a short text", "some text"),
}


def test_all_tasks_of_trace_run_from_the_command_line(folder, tmp_path):
    for name, answers in TRACE_ANSWERS.items():
        for split, count in (("train", 8), ("eval", 1), ("test", 2)):
            rows = [
                {"prompt": f"{name} {split} {i}?", "answer": answers[i % 2]} for i in range(count)
            ]
            write(tmp_path / "trace" / name / f"{split}.json", rows)
    arguments = ("preset=trace", f"data={tmp_path / 'trace'}", "max_length=64", "-q", "--no-report")
    assert train(folder, tmp_path, *arguments, "iterations_per_sample=0.125") == 0
    start, *_, end = events_of(tmp_path)
    assert start["tasks"] == list(TRACE_ANSWERS) and start["boundaries"] == [*range(1, 9)]
    last = [e for e in events_of(tmp_path) if e["type"] == "evaluation"][-1]
    assert set(last["accuracy"]) == set(TRACE_ANSWERS)
    assert set(last["loss"]) == set(TRACE_ANSWERS) - {"C-STANCE", "FOMC"}
    assert all(0 <= value <= 1 for value in last["accuracy"].values())
    assert end["a_last"] == pytest.approx(sum(last["accuracy"].values()) / 8)


LONG = {
    "TC": {"DBPedia": ("Company", "Film"), "Yahoo": ("Sports", "Health"), "AG News": ("World",)},
    "NLI": {
        "RTE": ("entailment", "contradiction"),
        "MNLI": ("neutral", "-"),
        "CB": ("neutral", "entailment"),
    },
    "WiC": {"WiC": ("True", "False")},
    "SC": {
        "Amazon": ("good", "bad"),
        "IMDB": ("Good", "Bad"),
        "Yelp": ("good", "bad"),
        "SST2": ("Good", "Bad"),
    },
    "MultiRC": {"MultiRC": ("True", "False")},
    "COPA": {"COPA": ("A", "B")},
    "QQP": {"QQP": ("True", "False")},
    "BoolQA": {"BoolQA": ("True", "False")},
}


def test_all_tasks_of_long_sequence_run_from_the_command_line(folder, tmp_path, capsys):
    home = tmp_path / "long" / "CL_Benchmark"
    for kind, tasks in LONG.items():
        for name, labels in tasks.items():
            for split, count in (("train", 8), ("dev", 1), ("test", 2)):
                rows = [
                    {"sentence": f"{split} {i}", "label": labels[i % len(labels)]}
                    for i in range(count)
                ]
                write(home / kind / name / f"{split}.json", rows)
            known = [label for label in labels if label != "-"]
            write(home / kind / name / "labels.json", [*known, "another"])
    kinds = {kind: [{"instruction": f"Do {kind}."}] for kind in LONG if kind != "COPA"}
    write(tmp_path / "long" / "instruction_config.json", kinds)
    arguments = ("preset=long_sequence", f"data={home.parent}", "--no-report")
    assert train(folder, tmp_path, *arguments) == 0
    text = capsys.readouterr().out
    assert "MNLI: 4 of 8 rows to train on and 1 of 2 held out have an answer that is none" in text
    start, *_, end = events_of(tmp_path)
    assert len(start["tasks"]) == 15 and 0 <= end["a_last"] <= 1
    keys = {key for e in events_of(tmp_path) if e["type"] == "selection" for key in e["key"]}
    # The last arrivals are drawn by chance.
    assert {key.partition("[")[0] for key in keys} >= set(start["tasks"][:12])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["preset=trace"], "preset: expected the folder of the benchmark as data"),
        (["preset=nothing", "data=x"], "preset: got 'nothing'"),
        (["preset=trace", "data=nowhere"], "data: no folder nowhere"),
        (["data=a.jsonl", "tasks=[bbc]"], "data: the files make the tasks"),
        (["data={path: a.jsonl, chat: 3}"], "data.chat: got 3"),
        (["data=a.jsonl", "off_task=bbc", "off_task_share=0.1"], "off_task, repeats: only with"),
        (["data=nowhere.jsonl"], "data: no file nowhere.jsonl"),
        (["epochs=0"], "epochs: got 0, expected an integer from 1"),
    ],
)
def test_wrong_settings_are_one_line(folder, tmp_path, capsys, settings, says):
    assert train(folder, tmp_path, *settings) == 2
    text = capsys.readouterr().err
    assert says in text and "Traceback" not in text


def test_off_a_terminal_there_are_no_carriage_returns(folder, tmp_path):
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(20))
    command = [sys.executable, "-m", "oasis", "train", "--data", rows, "--model", folder]
    done = subprocess.run(
        [*command, *FAST, f"out={tmp_path}", "--no-report"], capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert b"\r" not in done.stdout + done.stderr
    assert done.stderr.startswith(b"oasis: ")
