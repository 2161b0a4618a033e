"""The report against numbers worked out by hand, and on runs that are unfinished or damaged."""

import math
import re

import pytest
from page import Page
from runs_on_disk import TASKS, evaluation, made_up, selection, start, step, write_events

from oasis.lab import report
from oasis.lab.report import figures, groups, html
from oasis.lab.report.folders import find, load_all
from oasis.lab.report.runs import Run

T, F = True, False


def two_tasks():
    """Two tasks, three batches of four; every number below is worked out from these lines."""
    return [
        start("oasis", 0.25, tasks=["a", "b"], held_out={"a": 100, "b": 400}),
        evaluation(-1, {"a": 0.5, "b": 0.1}),
        selection(0, [0, 0, 0, 0], [T, F, F, F], [1.5, -0.5, None, 0.0]),
        step(1),
        selection(1, [0, 0, 0, 0], [F, T, T, F], [0.5, 2.0, 1.0, -1.0], skipped=1),
        step(2, 3.0),
        evaluation(0, {"a": 0.9, "b": 0.2}),
        selection(2, [0, 1, 1, 1], [F, F, F, T], [0.0, 0.0, 0.0, 1.0]),
        step(3),
        evaluation(1, {"a": 0.7, "b": 0.6}, 3.0),
        {"type": "end", "a_last": 0.65, "a_avg": 0.775, "candidates": 12, "seconds": 20.0},
    ]


@pytest.fixture
def run(tmp_path):
    return Run.load(write_events(tmp_path / "two", two_tasks()))


def test_numbers_worked_by_hand(run):
    assert (run.policy, run.ratio, run.seed, run.tasks) == ("oasis", 0.25, 0, ["a", "b"])
    assert (run.candidates, run.selected, run.skipped) == (12, 4, 1)
    assert run.realised_ratio == pytest.approx(1 / 3)
    assert run.per_task() == [(3, 9), (1, 3)]
    assert run.relative() == [1.5, -0.5, 0.0, 0.5, 2.0, 1.0, -1.0, 0.0, 0.0, 0.0, 1.0]
    # Boundary 0 counts task a alone (0.9), boundary 1 both ((0.7 + 0.6) / 2).
    assert run.seen_accuracy() == [(8, 0.9), (12, pytest.approx(0.65))]
    assert run.task_accuracy("b") == [(0, 0.1), (8, 0.2), (12, 0.6)]
    assert run.a_last == pytest.approx(0.65)
    assert run.a_avg == pytest.approx((0.9 + 0.65) / 2)
    assert run.score_seconds == pytest.approx(1.5)
    assert run.train_seconds == pytest.approx(5.0)
    assert run.evaluation_seconds == pytest.approx(5.0)  # not the 2 before training
    assert run.seconds == 20.0
    assert run.scoring_share == pytest.approx(1.5 / 6.5)
    assert run.finished and not run.unreadable


def test_standard_error_by_hand(run):
    expected = math.sqrt(0.7 * 0.3 / 100 + 0.6 * 0.4 / 400) / 2
    assert run.standard_error == pytest.approx(expected)
    assert "100 to 400" in html.standard_error_note([run])
    run.held_out = {}
    assert run.standard_error is None and html.standard_error_note([run]) == ""


def test_held_out_size_from_the_config(tmp_path):
    events = [start("oasis", tasks=["a"]), evaluation(0, {"a": 0.5})]
    path = write_events(tmp_path / "run", events)
    for config, held_out in (("held_out: 100\n", {"a": 100}), ("held_out: [", {}), ("- 1\n", {})):
        (path / "config.yaml").write_text(config)
        assert Run.load(path).held_out == held_out
    (path / "config.yaml").write_text("held_out: 100\n")
    assert Run.load(path).standard_error == pytest.approx(0.05)
    (path / "config.yaml").write_text("held_out: 100\naccuracy: macro\n")
    assert Run.load(path).standard_error is None


@pytest.mark.parametrize("lines", range(1, len(two_tasks()) + 1))
def test_every_prefix_of_a_run_reads_and_renders_its_numbers(tmp_path, lines):
    run = Run.load(write_events(tmp_path / "run", two_tasks()[:lines]))
    assert run.finished == (lines == len(two_tasks()))
    assert (run.a_last is None) == (lines < 10)
    html.rows(groups.group([run])[0])
    html.tile(groups.group([run])[0])


@pytest.mark.parametrize("keep", [1, 3, 7, 9])
def test_prefixes_make_pages(tmp_path, keep):
    page = report.write(write_events(tmp_path / "run", two_tasks()[:keep]), tmp_path / "r.html")
    assert "unfinished" in page.read_text("utf-8")


@pytest.mark.parametrize("cut", [1, 17, 60])
def test_killed_mid_line(tmp_path, cut):
    path = write_events(tmp_path / "run", two_tasks()[:8]) / "events.jsonl"
    path.write_text(path.read_text()[:-cut])
    run = Run.load(path.parent)
    torn = cut > 1  # 1 takes only the newline: the last event is whole
    assert (len(run.batches), run.unreadable) == ((2, 1) if torn else (3, 0))


def test_killed_in_the_middle_of_a_character(tmp_path):
    path = write_events(tmp_path / "run", two_tasks()[:5]) / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"type":"start","policy":"\xc3')
    run = Run.load(path.parent)
    assert (len(run.batches), run.unreadable) == (2, 1)


def test_resume_replaces_what_it_repeats(tmp_path):
    events = two_tasks()
    path = write_events(tmp_path / "run", [*events[:8], *events[9:]]) / "events.jsonl"
    # Killed in the middle of an event after batch 2, resumed from the checkpoint before batch 1.
    whole = write_events(tmp_path / "again", [events[0], *events[4:]]) / "events.jsonl"
    killed = write_events(tmp_path / "killed", events[:8]) / "events.jsonl"
    path.write_text(killed.read_text() + '{"type":"step","st' + whole.read_text())
    run = Run.load(path.parent)
    assert run.unreadable == 1
    assert [batch.index for batch in run.batches] == [0, 1, 2]
    assert (run.candidates, run.selected, run.train_seconds) == (12, 4, 5.0)
    assert run.seen_accuracy() == [(8, 0.9), (12, pytest.approx(0.65))]


def test_probes_are_points_of_the_tasks_curves(tmp_path):
    def probe(number, share):
        return {"type": "probe", "step": number, "accuracy": {"a": share}, "seconds": 1.0}

    batches = [selection(k, [0, 0], [True, False]) for k in range(4)]
    events = [start("oasis", tasks=["a"]), evaluation(-1, {"a": 0.25}), batches[0], probe(1, 0.5)]
    again = [batches[1], probe(2, 0.1), start("oasis", tasks=["a"]), batches[1], probe(2, 0.75)]
    events += [*again, batches[2], batches[3], evaluation(0, {"a": 1.0})]
    run = Run.load(write_events(tmp_path / "run", events))
    assert run.task_accuracy("a") == [(0, 0.25), (2, 0.5), (4, 0.75), (8, 1.0)]
    assert run.seen_accuracy() == [(8, 1.0)], "averages are of the task boundaries alone"


def test_unknown_and_malformed_events_pass_by(tmp_path):
    path = write_events(tmp_path / "run", two_tasks()) / "events.jsonl"
    path.write_text(path.read_text() + '{"type":"weather"}\n\n[1]\n{"no":"type"}\n')
    run = Run.load(path.parent)
    assert run.candidates == 12 and run.unreadable == 2


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"selection","selected":5}',
        '{"type":"selection","selected":[true],"task":7}',
        '{"type":"selection","selected":[true],"task":["a"]}',
        '{"type":"selection","selected":[true],"relative":{"a":1}}',
        '{"type":"selection","selected":[true],"batch":"x"}',
        '{"type":"selection","selected":[true],"skipped":[1]}',
        '{"type":"step","step":[1]}',
        '{"type":"evaluation","accuracy":3}',
        '{"type":"evaluation","after_task":{}}',
        '{"type":"start","tasks":3}',
        '{"type":"start","policy":3}',
        '{"type":"start","held_out":[1]}',
    ],
)
def test_an_event_of_the_wrong_form_is_counted_and_changes_nothing(tmp_path, line):
    events = two_tasks()
    path = write_events(tmp_path / "run", events) / "events.jsonl"
    whole = Run.load(path.parent)
    path.write_text(path.read_text() + line + "\n")
    run = Run.load(path.parent)
    assert run.unreadable == 1
    assert (run.batches, run.evaluations, run.steps) == (
        whole.batches,
        whole.evaluations,
        whole.steps,
    )
    assert report.write([path.parent], tmp_path / "page.html").exists()


def test_runs_that_cannot_be_opened_are_named_and_the_others_load(tmp_path, caplog):
    good = write_events(tmp_path / "good", two_tasks())
    assert [run.path for run in load_all([tmp_path / "absent", good])] == [good]
    assert "absent has no events.jsonl" in caplog.text


def test_find(tmp_path):
    a, b = (made_up(tmp_path / name, name, batches=2) for name in ("full", "random"))
    assert find([tmp_path]) == find(tmp_path) == [a, b]
    assert find([b, tmp_path, b]) == [b, a]
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        find([a, tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="expected a run directory"):
        find([tmp_path / "empty"])
    with pytest.raises(ValueError, match="run_dirs is empty"):
        find([])


def test_groups_are_told_apart(tmp_path):
    def fake(policy, ratio, seed=0):
        end = {"type": "end", "seconds": 1.0}
        path = tmp_path / f"{policy}{seed}"
        return Run(path=path, policy=policy, ratio=ratio, seed=seed, end=end)

    runs = [fake("full", 0.25), fake("random", 0.25), fake("oasis", 0.25), fake("oasis", 0.25, 1)]
    grouped = groups.group([*runs, fake("oasis", 0.125), fake("divbs", 0.25)])
    labels = [g.label for g in grouped]
    assert labels == ["oasis 25 %", "oasis 12.5 %", "divbs", "random", "full"]
    assert len({g.color for g in grouped}) == len({g.marker for g in grouped}) == 5
    assert grouped[0].names() == ["oasis 25 % · seed 0", "oasis 25 % · seed 1"]


def test_mean_row_over_seeds(tmp_path):
    runs = []
    for seed, last in ((0, 0.6), (1, 0.8)):
        events = [start("oasis", seed=seed, tasks=["a"]), evaluation(0, {"a": last})]
        runs.append(Run.load(write_events(tmp_path / str(seed), events)))
    *_, mean = html.rows(groups.group(runs)[0])
    assert mean["mean"] and mean["a_last"] == pytest.approx(0.7)
    assert mean["error"] == pytest.approx(0.1)  # sample deviation 0.1414 / sqrt(2)


def test_the_page(tmp_path):
    for policy in ("oasis", "random", "full"):
        made_up(tmp_path / policy, policy, batches=8)
    out = report.write([tmp_path], out=tmp_path / "new" / "report.html")
    assert out == tmp_path / "new" / "report.html"
    text = out.read_text("utf-8")
    page = Page(text)
    assert page.tags.count("svg") == len(html.FIGURES)
    # Self-contained: every link stays inside the file, and finds what it points to, once.
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "@import" not in text and "fetch(" not in text and "src=" not in text
    assert not re.search(r"url\((?!#)", text)
    targets = [link[1:] for link in page.links if link.startswith("#")]
    targets += re.findall(r"url\(#([^)]+)\)", text)
    assert targets and set(targets) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    # Every colour that stands for a variable was replaced, and the style sheet defines it.
    assert not any(color in text for color in (groups.MUTED, figures.GRID, groups.INK))
    assert all(f"--{name}: " in text for name in html.VARIABLES.values())
    run = Run.load(tmp_path / "oasis")
    for shown in (html.percent(run.a_last), html.percent(run.realised_ratio, 2), *TASKS):
        assert shown in page.text
    assert "±" in text and "N(0, 1)" in text and "target" in text


def test_same_runs_same_bytes(tmp_path):
    made_up(tmp_path / "oasis", "oasis", batches=4)
    pages = [report.write([tmp_path], tmp_path / name).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_names_from_the_run_are_escaped(tmp_path):
    events = [start("<b>bold</b>", tasks=["a<script>"]), evaluation(0, {"a<script>": 0.5})]
    page = Page(report.write(write_events(tmp_path / "r", events), tmp_path / "o").read_text())
    # The page's own script, and what the curves of the two figures of accuracy say.
    assert page.tags.count("script") == 3 and "b" not in page.tags[page.tags.index("section") :]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_duration(seconds, text):
    assert figures.duration(seconds).replace("\u00a0", " ") == text


def test_histogram_counts_every_candidate(run):
    figure = figures.relative(groups.group([run]))
    filled = figure.axes[0].patches[0].get_xy()
    # Area of the steps: every z lies within the range, so it is 1.
    x, y = filled[:, 0], filled[:, 1]
    area = abs(sum((x[i + 1] - x[i]) * (y[i + 1] + y[i]) / 2 for i in range(len(x) - 1)))
    assert area == pytest.approx(1)


def test_figures_show_the_numbers(run):
    grouped = groups.group([run])
    (line,) = figures.accuracy(grouped).axes[0].lines
    assert line.get_xydata().tolist() == [[8, 0.9], [12, pytest.approx(0.65)]]
    bars = figures.selected_per_task(grouped).axes[0].patches
    assert [bar.get_height() for bar in bars] == [pytest.approx(1 / 3), pytest.approx(1 / 3)]
    ratio = figures.realised_ratio(grouped).axes[0].lines[0].get_ydata().tolist()
    assert ratio == [pytest.approx(v) for v in (1 / 4, 3 / 8, 4 / 12)]
    times = [bar.get_width() for bar in figures.wall_clock(grouped).axes[0].patches]
    assert times == [pytest.approx(v) for v in (1.5, 5.0, 5.0)]
