"""The commands of the README and of docs/data.md that concern one's own data run as printed."""

import json
import re
import shlex
from pathlib import Path

import pytest
import tiny_folder
import tiny_vision_folder

from oasis import cli

ROOT = Path(__file__).parents[2]


def fenced(page: str, kind: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```", text)


def commands(page: str) -> list[list[str]]:
    """The arguments of every `oasis train` and `oasis select` in the page's console blocks."""
    lines = [line for block in fenced(page, "console") for line in block.splitlines()]
    found = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words[1:] for words in found if words[:2] in (["oasis", "train"], ["oasis", "select"])]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages name: rows, ./model, ./TRACE, a scenario, images for ./llava."""
    folder = tmp_path_factory.mktemp("place")
    tiny_folder.save(folder / "model")
    tiny_folder.write_rows(folder / "rows.jsonl", tiny_folder.numbers(200))
    tiny_vision_folder.save(folder / "llava")
    for name in ("ChartQA", "IconQA"):
        (folder / name).mkdir()
        rows = tiny_vision_folder.shades(folder / name, 24)
        (folder / name / "train.json").write_text(json.dumps(rows))
        for row in rows:
            row["image"] = f"{name}/{row['image']}"
        for half, part in (("train", rows[:16]), ("test", rows[16:])):
            (folder / "dataset" / name / half).mkdir(parents=True)
            (folder / "dataset" / name / half / "dataset-1.json").write_text(json.dumps(part))
    (folder / "scenarios").mkdir()
    scenario = next(block for block in fenced("docs/data.md", "json") if "client_id" in block)
    (folder / "scenarios" / "scenario-1.json").write_text(scenario)
    for task, answers in (("FOMC", "AB"), ("Py150", ("import os", "return x"))):
        (folder / "TRACE" / task).mkdir(parents=True)
        for split, count in (("train", 40), ("eval", 8), ("test", 8)):
            rows = [{"prompt": f"{split} {i}?", "answer": answers[i % 2]} for i in range(count)]
            (folder / "TRACE" / task / f"{split}.json").write_text(json.dumps(rows))
    for block in fenced("docs/data.md", "yaml"):
        name, text = block.split("\n", 1)
        (folder / name.removeprefix("# ")).write_text(text)
    return folder


def test_the_readmes_two_commands(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    train, select = commands("README.md")
    assert cli.main(train) == cli.main(select) == 0
    text = capsys.readouterr().out
    assert "rows: 200 rows, 180 to train on, 20 held out" in text
    assert "wrote runs/run/report.html" in text and Path("runs/run/adapter").is_dir()
    kept = Path("kept.jsonl").read_text("utf-8").splitlines()
    assert 40 <= len(kept) <= 50 and set(kept) < set(Path("rows.jsonl").read_text().splitlines())


@pytest.mark.parametrize("words", commands("docs/data.md"), ids=" ".join)
def test_the_pages_commands(place, monkeypatch, capsys, words):
    monkeypatch.chdir(place)
    assert cli.main([*words, "--overwrite"]) == 0
    assert capsys.readouterr().out
