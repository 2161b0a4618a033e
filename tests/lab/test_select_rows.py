"""`oasis select`: which rows are kept, what is said of the others, and what a kill leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_folder
import torch

from oasis import cli, policies
from oasis.lab import model as models
from oasis.lab.data.own.fields import Sample
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.data.own.tokens import encode_sample
from oasis.lab.select import SelectSettings, select
from oasis.lab.select import run as run_module
from oasis.lab.select.files import Files
from oasis.lab.select.score import Scorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder.save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def rows(tmp_path):
    return tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(50))


def settings(folder, rows, out, **changes):
    data = DataSettings(path=[rows])
    return SelectSettings(
        folder, data, out, **{"device": "cpu", "dtype": "float32", "batch_size": 8, **changes}
    )


def record(outcome):
    return [json.loads(line) for line in outcome.record.read_text("utf-8").splitlines()]


def test_kept_rows_are_written_as_they_were_and_in_order(folder, rows, tmp_path):
    done = select(settings(folder, rows, tmp_path / "kept.jsonl"), progress=False)
    lines = Path(rows).read_text("utf-8").splitlines()
    start, *told, end = record(done)
    assert [line["key"] for line in told] == [f"{rows}:{i + 1}" for i in range(50)]
    kept = [line for line, one in zip(lines, told, strict=True) if one["kept"]]
    assert done.out.read_text("utf-8").splitlines() == kept
    assert 0 < done.kept == len(kept) <= 12 and done.candidates == done.rows == 50
    assert start["policy"] == "oasis" and end["kept"] == done.kept
    assert {one["why"] for one in told if not one["kept"]} <= {"redundant", "low"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("kept.jsonl", "kept.record.jsonl", "rows.jsonl")
    ]


def test_it_chooses_what_the_policy_chooses_of_the_same_signals(folder, rows, tmp_path):
    done = select(settings(folder, rows, tmp_path / "kept.jsonl", seed=3), progress=False)
    device = torch.device("cpu")
    model = models.load_model(folder, device, torch.float32)
    tokenizer = models.load_tokenizer(folder)
    encoded = [
        encode_sample(
            Sample("", "pair", (("user", row["prompt"]), ("assistant", row["completion"]))),
            tokenizer,
            1024,
        )
        for row in tiny_folder.numbers(50)
    ]
    scorer = Scorer(model, tokenizer, policies.create("oasis", 0.25, 3, draw="even"))
    told = [line for line in record(done) if line["type"] == "row"]
    for start in range(0, 50, 8):
        selection, _ = scorer.observe(encoded[start : start + 8])
        ours = told[start : start + 8]
        assert [line["kept"] for line in ours] == selection.mask.tolist()
        assert [line["score"] for line in ours] == pytest.approx(selection.informativeness.tolist())
        # The score is the squared norm of the head's gradient of the row's mean loss.
    model.requires_grad_(True)
    ids, labels = (torch.tensor([x]) for x in (encoded[7].ids, encoded[7].labels))
    model(input_ids=ids, labels=labels).loss.backward()
    norm = float(model.get_output_embeddings().weight.grad.double().square().sum())
    assert told[7]["score"] == pytest.approx(norm, rel=1e-3)


def test_a_copy_is_redundant_with_the_row_that_was_picked(folder, tmp_path):
    (row,) = tiny_folder.numbers(1)
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", [row, row, row, row])
    made = settings(folder, rows, tmp_path / "kept.jsonl", batch_size=4, ratio=0.5)
    told = [line for line in record(select(made, progress=False)) if line["type"] == "row"]
    picked = [line["key"] for line in told if line["kept"]]
    assert picked[0] == f"{rows}:1"
    dropped = [line for line in told if not line["kept"]]
    assert dropped and all(line["why"] == "redundant" for line in dropped)
    assert all(line["with"] in picked and line["cosine"] == 1.0 for line in dropped)
    assert all(line["shared"] > 0.4 for line in dropped)


def test_empty_and_hopeless_rows_are_no_candidates_and_are_said(folder, tmp_path, capsys):
    made = tiny_folder.numbers(12)
    made[3]["completion"] = ""
    made[5]["prompt"] = "x" * 100
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", made)
    out = tmp_path / "kept.jsonl"
    arguments = ["--model", folder, "--data", rows, "--out", str(out), "--max-length", "20"]
    assert cli.main(["select", *arguments, "--ratio", "1", "--policy", "full", "-q"]) == 0
    text = capsys.readouterr().out
    assert "1 of 12 rows left out: empty" in text
    assert "1 rows scored by 20 of their tokens, and written whole" in text
    kept, wrote = text.splitlines()[-2:]
    assert kept.startswith("kept 11 of 11 (100.00 %), ")
    assert wrote == f"wrote {tmp_path / 'kept.report.html'}"
    page = (tmp_path / "kept.report.html").read_text("utf-8")
    assert "11 of 11 rows that could be" in page and ">empty</p>" in page
    record = str(tmp_path / "kept.record.jsonl")
    assert cli.main(["report", record, "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text("utf-8") == page
    assert cli.main(["report", str(out), "--out", str(tmp_path / "again.html")]) == 2
    assert "is no record of `oasis select`" in capsys.readouterr().err
    assert '"prompt": "' + "x" * 100 in out.read_text("utf-8")


@pytest.mark.parametrize("ratio", [0.25, 0.1])
def test_the_share_of_the_file_is_the_ratio(folder, tmp_path, ratio):
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(50))
    done = select(settings(folder, rows, tmp_path / "kept.jsonl", ratio=ratio), progress=False)
    assert done.kept == int(50 * ratio)
    free = settings(folder, rows, tmp_path / "free.jsonl", ratio=ratio, options={"draw": "top"})
    assert free.make_policy().selector.preset.draw == "top"
    paper = settings(folder, rows, tmp_path / "p.jsonl", options={"preset": "paper"})
    assert paper.make_policy().selector.preset.draw == "bernoulli"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("policy", ["oasis", "random", "greats"])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_killed_it_goes_on_to_the_same_files(folder, rows, tmp_path, monkeypatch, policy, at):
    whole = select(settings(folder, rows, tmp_path / "whole.jsonl", policy=policy), progress=False)
    part = settings(folder, rows, tmp_path / "part.jsonl", policy=policy)
    monkeypatch.setattr(run_module, "SAVE_SECONDS", 0.0)
    observe, calls = Scorer.observe, []

    def kill(self, batch):
        calls.append(len(batch))
        if len(calls) == at + 1:
            raise Killed
        return observe(self, batch)

    monkeypatch.setattr(Scorer, "observe", kill)
    with pytest.raises(Killed):
        select(part, progress=False)
    assert not part.out.exists() and (tmp_path / "part.jsonl.partial").is_dir()
    # What comes after the last state is not there twice.
    with (tmp_path / "part.jsonl.partial" / "kept.jsonl").open("ab") as file:
        file.write(b'{"torn": ')
    again = select(part, progress=False)
    assert sum(calls[at + 1 :]) == 50 - 8 * at  # nothing is scored twice
    assert again.out.read_bytes() == whole.out.read_bytes()
    assert again.record.read_bytes() == whole.record.read_bytes()
    assert again.counts() == whole.counts()
    assert not (tmp_path / "part.jsonl.partial").exists()


def test_killed_between_the_two_files_it_brings_the_other(folder, rows, tmp_path, monkeypatch):
    whole = select(settings(folder, rows, tmp_path / "whole.jsonl"), progress=False)
    part = settings(folder, rows, tmp_path / "part.jsonl")
    finish = Files.finish
    monkeypatch.setattr(Files, "finish", lambda self: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        select(part, progress=False)
    monkeypatch.setattr(Files, "finish", finish)
    (tmp_path / "part.jsonl.partial" / "record.jsonl").rename(tmp_path / "part.record.jsonl")
    with pytest.raises(ValueError, match="part.record.jsonl is there already"):
        Files(part.out).refuse_existing()
    (tmp_path / "part.record.jsonl").rename(tmp_path / "part.jsonl.partial" / "record.jsonl")
    again = select(part, progress=False)
    assert again.out.read_bytes() == whole.out.read_bytes() and again.counts() == whole.counts()


def test_other_rows_and_other_settings_are_not_gone_on_with(folder, rows, tmp_path, monkeypatch):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    monkeypatch.setattr(run_module, "SAVE_SECONDS", 0.0)
    observe, calls = Scorer.observe, []

    def kill(self, batch):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return observe(self, batch)

    monkeypatch.setattr(Scorer, "observe", kill)
    with pytest.raises(Killed):
        select(part, progress=False)
    with pytest.raises(ValueError, match="holds a selection with other settings"):
        select(settings(folder, rows, part.out, ratio=0.5), progress=False)
    for changed in (tiny_folder.numbers(51)[1:], tiny_folder.numbers(3)):
        tiny_folder.write_rows(tmp_path / "rows.jsonl", changed)
        with pytest.raises(ValueError, match="the rows are not those that the selection"):
            select(part, progress=False)
    assert select(part, overwrite=True, progress=False).rows == 3


def test_files_in_the_way_are_left_alone(folder, rows, tmp_path):
    out = tmp_path / "kept.jsonl"
    out.write_text("mine")
    with pytest.raises(ValueError, match="kept.jsonl is there already; --overwrite"):
        select(settings(folder, rows, out), progress=False)
    assert out.read_text() == "mine"
    select(settings(folder, rows, out), overwrite=True, progress=False)
    assert out.read_text().startswith('{"prompt"')


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"max_length": 1}, "max_length: got 1"),
        ({"layer": "all"}, "layer: got 'all'"),
        ({"ratio": 0}, "ratio"),
        ({"policy": "nothing"}, "name: got 'nothing'"),
        ({"options": {"no_such": 1}}, "policy 'oasis': .*no_such"),
        ({"policy": "random", "options": {"remember": 8}}, "policy 'random': .*remember"),
        ({"device": "gpu"}, "device: got 'gpu'"),
    ],
)
def test_wrong_settings_are_named(folder, rows, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        settings(folder, rows, tmp_path / "kept.jsonl", **changes).check()


def test_the_output_is_another_file_of_json_lines(folder, rows, tmp_path):
    with pytest.raises(ValueError, match=r"out: got .*kept.csv, expected a .jsonl file"):
        settings(folder, rows, tmp_path / "kept.csv")
    with pytest.raises(ValueError, match="is the file to select from"):
        settings(folder, rows, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_selects_from_a_file(folder, tmp_path, policy):
    if policy == "tive":  # of image and text; a text alone has no such score
        return
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(24))
    made = settings(folder, rows, tmp_path / "kept.jsonl", policy=policy, ratio=0.5)
    done = select(made, progress=False)
    assert 0 < done.kept <= (24 if policy == "full" else 12)
