"""Tables of a page: held-out losses, and the most and least informative candidates."""

import math

import pytest
from runs_on_disk import evaluation, selection, start, write_events

from oasis.lab import report
from oasis.lab.report.runs import Run
from oasis.lab.report.samples import losses, samples


@pytest.fixture
def run(tmp_path):
    keys = [f"rows.jsonl:{i + 1}" for i in range(6)]
    events = [
        start("oasis", tasks=["own", "closed"]),
        evaluation(-1, {"closed": 0.5}) | {"loss": {"own": 3.0}},
        selection(0, [0] * 4, [True, False, False, False], [2.0, 0.5, -1.0, 0.0], key=keys[:4]),
        evaluation(0, {}) | {"loss": {"own": 2.0}},
        selection(1, [0] * 4, [True, True, False, False], [3.0, 1.5, None, -2.0], key=keys[2:]),
        evaluation(1, {"closed": 0.75}) | {"loss": {"own": 2.5}},
    ]
    return Run.load(write_events(tmp_path / "mine", events))


def test_losses_are_those_before_training_and_last(run):
    (line,) = losses([run])
    assert (line.run, line.task, line.before, line.last) == ("mine", "own", 3.0, 2.5)
    assert line.perplexity == pytest.approx(math.exp(2.5))


def test_samples_are_ranked_by_their_largest_z(run):
    ((name, most, least),) = samples([run])
    assert name == "mine"
    assert [(s.key, s.z, s.selected, s.met) for s in most] == [
        ("rows.jsonl:3", 3.0, 1, 2),
        ("rows.jsonl:1", 2.0, 1, 1),
    ]
    assert [s.key for s in least] == ["rows.jsonl:6", "rows.jsonl:2"]


def test_the_page_has_both_and_pages_without_have_neither(run, tmp_path):
    page = report.write([run.path], tmp_path / "r.html").read_text("utf-8")
    assert "Held-out loss" in page and "2.500" in page and "12.18" in page
    assert "Which samples" in page and "rows.jsonl:3" in page and "1 of 2" in page
    plain = write_events(tmp_path / "plain", [start("random"), evaluation(-1, {"news": 0.5})])
    page = report.write([plain], tmp_path / "p.html").read_text("utf-8")
    assert "Held-out loss" not in page and "Which samples" not in page
