"""`oasis select`: which rows are kept, what is said of the others, and what a kill leaves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import tiny_folder
import torch

from oasis import cli, policies
from oasis.lab import model as models
from oasis.lab.data.own.encoder import Encoder
from oasis.lab.data.own.fields import Sample
from oasis.lab.data.own.settings import DataSettings
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
    start, *judged, end = record(done)
    assert [line["key"] for line in judged] == [f"{rows}:{i + 1}" for i in range(50)]
    kept = [line for line, one in zip(lines, judged, strict=True) if one["kept"]]
    assert done.out.read_text("utf-8").splitlines() == kept
    assert 0 < done.kept == len(kept) <= 12 and done.candidates == done.rows == 50
    assert start["policy"] == "oasis" and end["kept"] == done.kept
    assert {one["why"] for one in judged if not one["kept"]} <= {"redundant", "low"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("kept.jsonl", "kept.record.jsonl", "rows.jsonl")
    ]


def test_it_chooses_what_the_policy_chooses_of_the_same_signals(folder, rows, tmp_path):
    done = select(settings(folder, rows, tmp_path / "kept.jsonl", seed=3), progress=False)
    device = torch.device("cpu")
    model = models.load_model(folder, device, torch.float32)
    encoder = Encoder(models.load_tokenizer(folder), 1024)
    encoded = [
        encoder(Sample("", "pair", (("user", row["prompt"]), ("assistant", row["completion"]))))
        for row in tiny_folder.numbers(50)
    ]
    scorer = Scorer(model, encoder, policies.create("oasis", 0.25, 3, draw="even"))
    judged = [line for line in record(done) if line["type"] == "row"]
    for start in range(0, 50, 8):
        selection, _ = scorer.observe(encoded[start : start + 8])
        ours = judged[start : start + 8]
        assert [line["kept"] for line in ours] == selection.mask.tolist()
        assert [line["score"] for line in ours] == pytest.approx(selection.informativeness.tolist())
        # The score is the squared norm of the head's gradient of the row's mean loss.
    model.requires_grad_(True)
    ids, labels = (torch.tensor([x]) for x in (encoded[7].ids, encoded[7].labels))
    model(input_ids=ids, labels=labels).loss.backward()
    norm = float(model.get_output_embeddings().weight.grad.double().square().sum())
    assert judged[7]["score"] == pytest.approx(norm, rel=1e-3)


def test_a_policy_that_needs_a_model_refuses_none(folder):
    encoder = Encoder(models.load_tokenizer(folder), 1024)
    Scorer(None, encoder, policies.create("random", 0.25, 3))
    with pytest.raises(ValueError, match="model: got None, expected one: the policy needs"):
        Scorer(None, encoder, policies.create("oasis", 0.25, 3))


def test_a_copy_is_redundant_with_the_row_that_was_picked(folder, tmp_path):
    # Which of the copies leads is a matter of rounding: products differ with a row's place.
    (row,) = tiny_folder.numbers(1)
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", [row, row, row, row])
    made = settings(folder, rows, tmp_path / "kept.jsonl", batch_size=4, ratio=0.5)
    judged = [line for line in record(select(made, progress=False)) if line["type"] == "row"]
    picked = [line["key"] for line in judged if line["kept"]]
    assert picked
    dropped = [line for line in judged if not line["kept"]]
    assert dropped and all(line["why"] == "redundant" for line in dropped)
    assert all(line["with"] in picked for line in dropped)
    assert all(line["cosine"] == pytest.approx(1, abs=1e-5) for line in dropped)
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


def killed_after(part, batches, monkeypatch):
    """Select until `batches` of them are on the disk."""
    observe, calls = Scorer.observe, []

    def kill(self, batch):
        calls.append(batch)
        if len(calls) > batches:
            raise Killed
        return observe(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "SAVE_SECONDS", 0.0)
        patch.setattr(Scorer, "observe", kill)
        with pytest.raises(Killed):
            select(part, progress=False)
    return part.out.with_name(f"{part.out.name}.partial")


@pytest.mark.parametrize("policy", ["oasis", "random", "greats"])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_killed_it_goes_on_to_the_same_files(folder, rows, tmp_path, monkeypatch, policy, at):
    whole = select(settings(folder, rows, tmp_path / "whole.jsonl", policy=policy), progress=False)
    part = settings(folder, rows, tmp_path / "part.jsonl", policy=policy)
    partial = killed_after(part, at, monkeypatch)
    assert not part.out.exists() and partial.is_dir()
    # What comes after the last state is not there twice.
    with (partial / "kept.jsonl").open("ab") as file:
        file.write(b'{"torn": ')
    observe, scored = Scorer.observe, []
    monkeypatch.setattr(
        Scorer, "observe", lambda self, rows: scored.extend(rows) or observe(self, rows)
    )
    again = select(part, progress=False)
    assert len(scored) == 50 - 8 * at  # nothing is scored twice
    assert again.out.read_bytes() == whole.out.read_bytes()
    assert again.record.read_bytes() == whole.record.read_bytes()
    assert again.counts() == whole.counts()
    assert not partial.exists()


def test_killed_between_the_two_files_it_brings_the_other(folder, rows, tmp_path, monkeypatch):
    whole = select(settings(folder, rows, tmp_path / "whole.jsonl"), progress=False)
    part = settings(folder, rows, tmp_path / "part.jsonl")
    finish = Files.finish
    monkeypatch.setattr(Files, "finish", lambda self: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        select(part, progress=False)
    monkeypatch.setattr(Files, "finish", finish)
    partial, record = tmp_path / "part.jsonl.partial" / "record.jsonl", part.out
    record = tmp_path / "part.record.jsonl"
    record.write_text("somebody's")
    with pytest.raises(ValueError, match="part.record.jsonl is there already"):
        select(part, progress=False)
    partial.rename(record)
    with pytest.raises(ValueError, match="part.record.jsonl is there already"):
        select(settings(folder, rows, part.out, ratio=0.5), progress=False)
    again = select(part, progress=False)
    assert again.out.read_bytes() == whole.out.read_bytes() and again.counts() == whole.counts()


def test_other_rows_and_other_settings_are_not_gone_on_with(folder, rows, tmp_path, monkeypatch):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    killed_after(part, 2, monkeypatch)
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


@pytest.mark.parametrize(
    "name", ["kept.jsonl", "kept.record.jsonl", "kept.jsonl.partial/kept.jsonl"]
)
@pytest.mark.parametrize("how", ["same", "other spelling", "link", "link to it", "hard link"])
def test_the_file_to_select_from_is_left_alone_whatever_it_is_called(folder, tmp_path, name, how):
    written = tmp_path / name
    written.parent.mkdir(exist_ok=True)
    tiny_folder.write_rows(written, tiny_folder.numbers(4))
    rows = {"same": written, "other spelling": f"{tmp_path}/../{tmp_path.name}/{name}"}.get(how)
    if rows is None:
        rows = tmp_path / "rows.jsonl"
        if how == "link":
            rows.symlink_to(written)
        elif how == "hard link":
            rows.hardlink_to(written)
        else:
            written.rename(rows)
            written.symlink_to(rows)
    before = Path(rows).read_bytes()
    with pytest.raises(ValueError, match=f"out: .*{name} is the file to select from"):
        select(settings(folder, str(rows), tmp_path / "kept.jsonl"), overwrite=True)
    assert Path(rows).read_bytes() == before


def not_to_be_called(*_, **__):
    raise AssertionError("called")


def test_other_rows_are_refused_before_anything_is_encoded_or_loaded(
    folder, rows, tmp_path, monkeypatch
):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    killed_after(part, 3, monkeypatch)
    tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(51)[1:])
    for name in ("load_tokenizer", "load_model"):
        monkeypatch.setattr(models, name, not_to_be_called)
    with pytest.raises(ValueError, match="the rows are not those that the selection"):
        select(part, progress=False)
    with pytest.raises(ValueError, match="holds a selection with other settings"):
        select(settings(folder, rows, part.out, seed=1), progress=False)


def test_rows_that_were_read_are_not_encoded_again(folder, rows, tmp_path, monkeypatch):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    killed_after(part, 3, monkeypatch)
    encode, calls = Encoder.or_why, []
    monkeypatch.setattr(Encoder, "or_why", lambda *args: calls.append(args) or encode(*args))
    select(part, progress=False)
    assert len(calls) == 50 - 3 * 8


def test_rows_behind_a_finished_selection_are_other_rows(folder, rows, tmp_path, monkeypatch):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(Files, "finish", lambda self: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            select(part, progress=False)
    tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(51))
    with pytest.raises(ValueError, match="the rows are not those that the selection"):
        select(part, progress=False)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02cos\nsystem\n.", b"no state", None])
def test_a_damaged_state_is_named(folder, rows, tmp_path, monkeypatch, content):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    state = killed_after(part, 3, monkeypatch) / "state.pt"
    if content is None:
        torch.save({"settings": "{}"}, state)
    else:
        state.write_bytes(content)
    with pytest.raises(ValueError, match=f"{state}: damaged .*--overwrite starts anew"):
        select(part, progress=False)
    assert select(part, overwrite=True, progress=False).rows == 50


@pytest.mark.parametrize("name", ["kept.jsonl", "record.jsonl"])
def test_files_that_lost_what_the_state_vouches_for_are_named(
    folder, rows, tmp_path, monkeypatch, name
):
    part = settings(folder, rows, tmp_path / "part.jsonl")
    file = killed_after(part, 3, monkeypatch) / name
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-1])
    said = f"{file}: damaged, got {size - 1} bytes, expected at least {size}"
    with pytest.raises(ValueError, match=said):
        select(part, progress=False)


@pytest.mark.parametrize("at", ["kept.jsonl", "record.jsonl", "state.pt"])
def test_writes_that_fail_are_named(folder, rows, tmp_path, monkeypatch, at):
    part = settings(folder, rows, tmp_path / "part.jsonl")

    def full(descriptor):
        if at in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if at == "state.pt":
        error = RuntimeError("[enforce fail at inline_container.cc:672]")
        monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(error))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        select(part, progress=False)
    assert caught.value.filename == str(tmp_path / "part.jsonl.partial" / at)


@pytest.mark.parametrize("policy", ["random", "full", "balanced"])
def test_a_policy_that_asks_for_nothing_loads_no_model(folder, rows, tmp_path, monkeypatch, policy):
    monkeypatch.setattr(models, "load_model", not_to_be_called)
    made = settings(folder, rows, tmp_path / "kept.jsonl", policy=policy, ratio=0.5)
    done = select(made, progress=False)
    assert done.kept == (50 if policy == "full" else 25)


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_selects_from_a_file(folder, tmp_path, policy):
    if policy == "tive":  # of image and text; a text alone has no such score
        return
    rows = tiny_folder.write_rows(tmp_path / "rows.jsonl", tiny_folder.numbers(24))
    made = settings(folder, rows, tmp_path / "kept.jsonl", policy=policy, ratio=0.5)
    done = select(made, progress=False)
    assert 0 < done.kept <= (24 if policy == "full" else 12)
