"""The page of a selection: counts, reasons, and the rows at both ends of any number."""

import json

import pytest

from oasis.lab.report import selection
from oasis.lab.report.samples import LEAST, MOST, REDUNDANT


def record(path, rows, **more):
    start = {"type": "start", "data": {"path": ["a.jsonl", "b.jsonl"]}, "model": "m"}
    start |= {"policy": "oasis", "ratio": 0.25, "batch_size": 4, **more}
    lines = [start, *({"type": "row", **row} for row in rows), {"type": "end"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def row(key, z, kept=False, **more):
    return {"key": key, "text": f"text of {key}", "kept": kept, "score": 1.0, "z": z, **more}


ROWS = [
    row("a.jsonl:1", 2.0, True),
    row("a.jsonl:2", 1.0, why="redundant", cosine=0.9, shared=0.8) | {"with": "a.jsonl:1"},
    {"key": "a.jsonl:3", "text": "", "kept": False, "why": "empty"},
    row("a.jsonl:4", -1.0, why="low"),
    row("b.jsonl:1", 0.5, why="low"),
    row("b.jsonl:2", 3.0, True),
]


def test_the_page_says_what_was_kept_and_why_others_were_not(tmp_path):
    out = selection.write(record(tmp_path / "kept.record.jsonl", ROWS), tmp_path / "page.html")
    page = out.read_text("utf-8")
    assert "40.00\u00a0%" in page and "2 of 5 rows that could be" in page
    for reason in ("redundant", "low", "empty"):
        assert f'<p class="label">{reason}</p>' in page
    twin = "redundant with <code>a.jsonl:1</code>, cosine 0.90, 80\u00a0% taken off"
    assert f"{twin}<br>text of a.jsonl:1" in page
    assert "Kept of each file" in page and "<td>b.jsonl</td>" in page


def test_the_rows_make_batches_of_the_files(tmp_path):
    path = record(tmp_path / "kept.record.jsonl", ROWS)
    run, why = selection._run(path, selection._start(path))
    assert [batch.task for batch in run.batches] == [[0, 0, 0, 1], [1]]
    assert run.per_task() == [(1, 3), (1, 2)] and run.relative() == [2.0, 1.0, -1.0, 0.5, 3.0]
    assert why == {"kept": 2, "redundant": 1, "empty": 1, "low": 2}


def test_of_many_rows_those_at_the_ends_are_shown(tmp_path):
    rows = [row(f"a.jsonl:{i}", float(i), why="low") for i in range(400)]
    rows[7] |= {"why": "redundant", "with": "a.jsonl:399", "cosine": -1.0, "shared": 0.5}
    path = record(tmp_path / "kept.record.jsonl", rows)
    shown = selection._with_texts(path, selection._shown(selection._samples(path, ["a.jsonl"])))
    kinds = {kind: {s.z for s in shown if kind in s.kinds} for kind in (MOST, LEAST, REDUNDANT)}
    assert kinds[MOST] == {float(i) for i in range(340, 400)}
    assert kinds[LEAST] == {float(i) for i in range(60)} and kinds[REDUNDANT] == {7.0}
    assert len(shown) == 120 and shown[0].z == 399
    assert next(s for s in shown if s.twin).twin.text == "text of a.jsonl:399"


def test_a_policy_without_scores_has_counts_alone(tmp_path):
    rows = [{"key": f"a.jsonl:{i}", "text": "", "kept": i == 0, "score": None, "z": None,
             "why": "not picked"} for i in range(3)]  # fmt: skip
    del rows[0]["why"]
    out = selection.write(record(tmp_path / "r.jsonl", rows, policy="random"), tmp_path / "p.html")
    page = out.read_text("utf-8")
    assert "1 of 3 rows" in page and "Which samples" not in page


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "start"}', "x"])
def test_another_file_is_no_record(tmp_path, text):
    (tmp_path / "r.jsonl").write_text(text + "\n")
    with pytest.raises(ValueError, match="is no record of `oasis select`"):
        selection.write(tmp_path / "r.jsonl", tmp_path / "p.html")


@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("a.jsonl:1", 0),
        ("a.jsonl.jsonl:3", 1),
        ("table.parquet[4]", 2),
        ("rows/train[2]", 3),
        ("b.jsonl:1", None),
    ],
)
def test_a_key_belongs_to_the_file_that_it_was_read_from(key, file):
    files = ["./a.jsonl", "a.jsonl.jsonl", "table.parquet", "rows/"]
    assert selection._file(key, files) == file
