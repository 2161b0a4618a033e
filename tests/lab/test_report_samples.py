"""Tables of a page: held-out losses, and the most and least informative candidates."""

import math

import pytest
from runs_on_disk import evaluation, selection, start, write_events

from oasis.lab import report
from oasis.lab.report.runs import Run
from oasis.lab.report.samples import LEAST, MOST, REDUNDANT, Sample, Twin, ends, losses, samples


@pytest.fixture
def run(tmp_path):
    keys = [f"rows.jsonl:{i + 1}" for i in range(6)]
    twins = [None, [0, 0.9, 0.8], None, [0, -0.5, 0.4]]
    events = [
        start("oasis", tasks=["own", "closed"]),
        evaluation(-1, {"closed": 0.5}) | {"loss": {"own": 3.0}},
        selection(0, [0] * 4, [True, False, False, False], [2.0, 0.5, -1.0, 0.0], key=keys[:4],
                  redundant=twins, text=["first", "second <b>", None, "fourth"]),
        evaluation(0, {}) | {"loss": {"own": 2.0}},
        selection(1, [0, 0, 1, 1], [True, True, False, False], [3.0, 1.5, None, -2.0],
                  key=keys[2:], redundant=[None, None, None, [1, 0.7, 0.6]]),
        evaluation(1, {"closed": 0.75}) | {"loss": {"own": 2.5}},
    ]  # fmt: skip
    return Run.load(write_events(tmp_path / "mine", events))


def test_losses_are_those_before_training_and_last(run):
    (line,) = losses([run])
    assert (line.run, line.task, line.before, line.last) == ("mine", "own", 3.0, 2.5)
    assert line.perplexity == pytest.approx(math.exp(2.5))


def test_samples_are_ranked_by_their_largest_z(run):
    found = samples([run])
    assert [(s.run, s.key, s.z, s.selected, s.met) for s in found] == [
        ("mine", "rows.jsonl:3", 3.0, 1, 2),
        ("mine", "rows.jsonl:1", 2.0, 1, 1),
        ("mine", "rows.jsonl:4", 1.5, 1, 2),
        ("mine", "rows.jsonl:2", 0.5, 0, 1),
        ("mine", "rows.jsonl:6", -2.0, 0, 1),
    ]
    assert [s.text for s in found] == ["", "first", "fourth", "second <b>", ""]
    assert [s.task for s in found] == ["own"] * 4 + ["closed"]


def test_what_was_redundant_names_the_pick_and_its_text(run):
    of = {s.key[-1]: s.twin for s in samples([run])}
    assert of["2"] == Twin("rows.jsonl:1", "first", 0.9, 0.8)
    assert of["4"] == Twin("rows.jsonl:1", "first", -0.5, 0.4), "though it was picked later"
    assert of["6"].key == "rows.jsonl:4" and of["1"] is of["3"] is None


def test_of_many_the_ends_of_each_task_are_shown(monkeypatch):
    def sample(task, z, cosine=None):
        twin = None if cosine is None else Twin("k", "", cosine, 0.5)
        return Sample("run", f"{task}{z}", task, "", z, 1, 0, twin)

    rows = [sample(task, float(z)) for task in "ab" for z in range(20)]
    rows += [sample("a", 9.5, 0.2), sample("a", 9.6, -0.9), sample("a", 9.7, 0.3)]
    kinds = {s.key: s.kinds for s in ends(rows)}
    assert len(kinds) == 43, "few enough for all"
    monkeypatch.setattr("oasis.lab.report.samples.ALL", 40)
    monkeypatch.setattr("oasis.lab.report.samples.SHOWN", 4)
    monkeypatch.setattr("oasis.lab.report.samples.FEWEST", 1)
    for row in rows:
        row.kinds.clear()
    kinds = {s.key: s.kinds for s in ends(rows)}
    assert {k for k, v in kinds.items() if MOST in v} == {"a19.0", "a18.0", "b19.0", "b18.0"}
    assert {k for k, v in kinds.items() if LEAST in v} == {"a0.0", "a1.0", "b0.0", "b1.0"}
    assert {k for k, v in kinds.items() if REDUNDANT in v} == {"a9.6", "a9.7"}, "most like a pick"
    assert len(kinds) == 10


def test_the_page_has_both_and_pages_without_have_neither(run, tmp_path):
    page = report.write([run.path], tmp_path / "r.html").read_text("utf-8")
    assert "Held-out loss" in page and "2.500" in page and "12.18" in page
    assert "Which samples" in page and "rows.jsonl:3" in page and "1 of 2" in page
    assert 'type="search"' in page and 'data-kinds="least informative,redundant"' in page
    twin = "redundant with <code>rows.jsonl:1</code>, cosine 0.90, 80\u00a0% taken off<br>first"
    assert twin in page and "second &lt;b&gt;" in page
    plain = write_events(tmp_path / "plain", [start("random"), evaluation(-1, {"news": 0.5})])
    page = report.write([plain], tmp_path / "p.html").read_text("utf-8")
    assert "Held-out loss" not in page and "Which samples" not in page
