"""Scenarios of COAST and Adapt: which files of theirs make which tasks of a run."""

from __future__ import annotations

import json

import pytest
import tiny_vision_folder
from tiny_text import tokenizer

from oasis import cli
from oasis.lab.data.own.load import load
from oasis.lab.data.own.scenario import is_scenario, parts_of
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.record.log import read_events

FAST = ("rank=2", "device=cpu", "dtype=float32", "batch_size=8", "-q", "--no-report")


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")
    return str(path)


def entry(name, subset=1, kind="multi-choice", **more):
    return {"dataset": name, "subset_id": subset, "type": kind, **more}


def talk(asked, answered):
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answered}]
    return {"id": asked, "conversations": turns}


@pytest.fixture
def home(tmp_path):
    """Two datasets, of which the first has two subsets; the answers of all are two letters."""
    for name, subset in (("IconQA", 1), ("IconQA", 2), ("DocVQA", 1)):
        for half, count in (("train", 24), ("test", 4)):
            rows = [talk(f"{name} {subset} {half} {i} A or B ?", "AB"[i % 2]) for i in range(count)]
            write(tmp_path / "dataset" / name / half / f"dataset-{subset}.json", rows)
    return tmp_path


def scenario(home, *entries, client=0, place="scenarios"):
    return write(home / place / "scenario-1.json", [{"client_id": client, "datasets": [*entries]}])


def test_each_entry_is_a_task_with_held_out_rows_of_its_own(home):
    path = scenario(home, entry("IconQA", 2), entry("DocVQA", "1", "open-ended", metric="anls"))
    found = load(DataSettings(path=[path]), tokenizer(), 64)
    assert [task.name for task in found.tasks] == ["IconQA-2", "DocVQA-1"]
    assert [(len(task.train), len(task.test)) for task in found.tasks] == [(24, 4)] * 2
    # Both have few answers; the scenario says which of them are a closed set.
    assert [task.choices for task in found.tasks] == [("A", "B"), ()]
    assert found.tasks[0].train[0]["key"].endswith("dataset/IconQA/train/dataset-2.json[0]")
    assert "DocVQA-1: judged by held-out loss, not by the scenario's 'anls'" in found.said
    assert not any("test_share" in line for line in found.said)


def test_the_rows_lie_beside_the_scenario_too(home):
    found = parts_of(DataSettings(path=[scenario(home, entry("IconQA"), place=".")]))
    assert found[0].train == str(home / "dataset" / "IconQA" / "train" / "dataset-1.json")


def test_of_several_clients_one_is_named(home):
    clients = [
        {"client_id": 0, "datasets": [entry("IconQA")]},
        {"client_id": 7, "datasets": [entry("DocVQA"), entry("IconQA", 2)]},
    ]
    path = write(home / "scenario.json", clients)
    for client in (7, "7"):
        found = parts_of(DataSettings(path=[path], client=client))
        assert [part.name for part in found] == ["DocVQA-1", "IconQA-2"]
    for client, said in ((None, "has several clients, expected one of 0, 7"), (3, "got 3, expect")):
        with pytest.raises(ValueError, match=f"^data.client: .*{said}"):
            parts_of(DataSettings(path=[path], client=client))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["IconQA"], ".datasets[0]: got a text, expected an object"),
        ([{"subset_id": 1, "type": "open-ended"}], '.datasets[0]: got no "dataset", expected'),
        ([entry("IconQA"), entry("IconQA", 1.5)], '.datasets[1]: got 1.5 as "subset_id"'),
        ([entry("IconQA", kind="choice")], '.datasets[0]: got "choice" as "type", expected "multi'),
        ([entry("IconQA", metric=["F1"])], '.datasets[0]: got ["F1"] as "metric", expected a text'),
        ([entry("IconQA"), entry("IconQA")], ".datasets[1]: IconQA-1 comes a second time"),
        ([entry("ChartQA")], ".datasets[0]: no folder ChartQA in "),
        ([entry("IconQA", 3)], ".datasets[0]: no file "),
        ([], ": got [] as \"datasets\", expected a list of objects"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_entry(home, entries, said):
    path = scenario(home, *entries)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        parts_of(DataSettings(path=[path]))
    assert str(caught.value).startswith(f"{path}[0]{said}")


def test_clients_are_told_apart(home):
    one = {"client_id": 0, "datasets": [entry("IconQA")]}
    for clients, said in (
        ([one, one], '[1]: got 0 as "client_id" a second time'),
        ([one, {"datasets": []}], '[1]: got no "client_id"'),
        ([one, 3], "[1]: got a number, expected an object"),
    ):
        path = write(home / "scenario.json", clients)
        with pytest.raises(ValueError) as caught:
            parts_of(DataSettings(path=[path]))
        assert str(caught.value).startswith(f"{path}{said}")


def test_a_scenario_comes_alone_and_files_of_rows_have_no_clients(home):
    path = scenario(home, entry("IconQA"))
    rows = str(home / "dataset" / "IconQA" / "train" / "dataset-1.json")
    assert is_scenario(path) and not is_scenario(rows) and not is_scenario(str(home))
    with pytest.raises(ValueError, match="is a scenario, which names its files"):
        parts_of(DataSettings(path=[path, rows]))
    with pytest.raises(ValueError, match=r"data\.client: of no use here"):
        parts_of(DataSettings(path=[rows], client=0))


def test_a_scenario_of_images_runs_from_the_command_line(tmp_path, capsys):
    model = tiny_vision_folder.save(tmp_path / "model")
    pictures = tmp_path / "dataset" / "Shades" / "images"
    pictures.mkdir(parents=True)
    rows = tiny_vision_folder.shades(pictures, 32)
    write(tmp_path / "dataset" / "Shades" / "train" / "dataset-1.json", rows[:24])
    write(tmp_path / "dataset" / "Shades" / "test" / "dataset-1.json", rows[24:])
    path = scenario(tmp_path, entry("Shades"))
    arguments = ["--data", path, "--model", model, f"out={tmp_path / 'runs'}", *FAST]
    assert cli.main(["train", *arguments, f"data.image_folder={pictures}"]) == 0
    start, *_, end = read_events(tmp_path / "runs" / "run" / "events.jsonl")
    assert start["tasks"] == ["Shades-1"] and start["held_out"] == {"Shades-1": 8}
    assert 0 <= end["a_last"] <= 1
    missing = scenario(tmp_path, entry("Shades", 2))
    assert cli.main(["train", "--data", missing, "--model", model]) == 2
    assert f"{missing}[0].datasets[0]: no file" in capsys.readouterr().err.replace("\n", "")
