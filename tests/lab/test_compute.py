"""Random of equal compute, by hand, and the figure and tables made of it."""

from __future__ import annotations

import json

import pytest
from made_up_grid import cell

from oasis.lab.report import compute, compute_figure, results
from oasis.lab.report.compute import Point, at_equal_compute, between, curve, points, reaches
from oasis.lab.report.figures import floor
from oasis.lab.report.runs import Run


def point(policy, ratio, *pairs):
    """A point of (cost, accuracy) of seeds 0, 1, ..."""
    cost, accuracy = (sum(values) / len(values) for values in zip(*pairs, strict=True))
    return Point(policy, policy, ratio, cost, accuracy, dict(enumerate(pairs)))


RANDOM = [
    point("random", 0.25, (20.0, 0.40), (30.0, 0.50)),
    point("random", 0.75, (60.0, 0.60), (70.0, 0.60)),
]
FULL = point("full", 1.0, (100.0, 0.70), (100.0, 0.70))


def test_random_of_equal_compute_by_hand():
    ours = point("oasis", 0.25, (40.0, 0.55), (50.0, 0.60))
    (beside,) = at_equal_compute([ours, *RANDOM, FULL])
    assert beside.point is ours
    # Mean cost 45 between 25 (25 %) and 65 (75 %).
    assert beside.share == pytest.approx(0.25 + 0.5 * 20 / 40)
    # Seed 0: random 0.5 at 40; seed 1: 0.55 at 50.
    assert beside.accuracy == pytest.approx(0.525)
    assert beside.difference == pytest.approx(0.05) and beside.seeds == 2
    assert beside.deviation == pytest.approx(0.0)
    # Random's means 0.45, 0.60, 0.70 reach 0.575 at 25 % + 50 % * 0.125 / 0.15.
    assert beside.reached == pytest.approx(0.25 + 0.5 * 0.125 / 0.15)


def test_nothing_is_said_beyond_the_ends_of_random():
    dear = point("oasis", 0.5, (101.0, 0.8))
    cheap = point("divbs", 0.25, (10.0, 0.3))
    for beside in at_equal_compute([dear, cheap, *RANDOM, FULL]):
        assert beside.share is beside.accuracy is beside.difference is beside.reached is None
    assert at_equal_compute([dear, RANDOM[0]]) == [], "one ratio is no curve"
    assert at_equal_compute([dear, cheap]) == []


def test_everything_is_the_right_end_of_random_alone():
    found = [*RANDOM, FULL, point("balanced", 0.5, (45.0, 0.5))]
    assert [p.ratio for p in curve(found, "random")] == [0.25, 0.75, 1.0]
    assert [p.ratio for p in curve(found, "balanced")] == [0.5]
    assert [p.ratio for p in curve(found, "full")] == [1.0]


def test_lines_between_points():
    assert between(2.0, [1.0, 3.0], [0.0, 1.0]) == 0.5
    assert between(0.9, [1.0, 3.0], [0.0, 1.0]) is None is between(2.0, [2.0], [1.0])
    assert reaches(0.5, [0.4, 0.45, 0.6], [1.0, 2.0, 3.0]) == pytest.approx(2 + 0.05 / 0.15)
    assert reaches(0.4, [0.4, 0.3, 0.6], [1.0, 2.0, 3.0]) == 1.0, "the first"
    assert reaches(0.3, [0.4, 0.6], [1.0, 2.0]) is None is reaches(0.7, [0.4, 0.6], [1.0, 2.0])


def answers(shift):
    """Right and all of a frequent and a rare answer of four tasks."""
    return {task: {"often": [60 + shift, 80], "seldom": [shift, 20]}
            for task in ("sentiment", "news", "spam", "authors")}  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    paths = []
    for seed in range(2):
        for ratio in (0.125, 0.25, 0.5):
            paths.append(cell(tmp_path / "runs", "random", "random", seed, ratio))
        paths += [cell(tmp_path / "runs", p, p, seed) for p in ("oasis", "balanced", "full")]
        paths.append(cell(tmp_path / "runs", "oasis", "oasis", seed, 0.5))
    for path in paths:
        lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
        for event in lines:
            if event["type"] == "evaluation":
                event["answers"] = answers(10 if "oasis" in path.name else 0)
        (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [Run.load(path) for path in paths]


def test_points_are_of_both_accuracies_and_what_scoring_and_training_cost(runs):
    found = results.variants(runs)
    (ours,) = [p for p in points(found, "FLOPs", "macro") if (p.label, p.ratio) == ("oasis", 0.25)]
    assert ours.cost == 4e12 + 3e13 * 0.25 and set(ours.seeds) == {0, 1}
    assert ours.accuracy == pytest.approx((70 / 80 + 10 / 20) / 2)
    (micro,) = [
        p for p in points(found, "seconds", "micro") if (p.label, p.ratio) == ("oasis", 0.25)
    ]
    mine = [run for run in runs if (run.label, run.ratio) == ("oasis", 0.25)]
    assert micro.cost == pytest.approx(sum(r.score_seconds + r.train_seconds for r in mine) / 2)
    assert micro.accuracy == pytest.approx(sum(r.a_last for r in mine) / 2)  # the setting's own
    frame = compute.records(found, found[0].order)
    assert set(zip(frame.compute, frame.accuracy, strict=True)) == {
        (c, a) for c in ("FLOPs", "seconds") for a in ("macro", "micro")}  # fmt: skip
    (line,) = frame.query(
        "label == 'oasis' and ratio == 0.25 and compute == 'FLOPs' and accuracy == 'macro'"
    ).itertuples()
    # 11.5e12 operations are random's at 11.5 / 30 of the samples.
    assert line.random_share == pytest.approx(11.5 / 30)
    assert line.random_a_last == pytest.approx(0.375) and line.seeds == 2
    assert line.difference == pytest.approx(0.6875 - 0.375)


def test_the_figure_has_a_curve_for_each_policy_and_its_axes_begin_at_zero(runs):
    figure = compute_figure.over_compute(results.variants(runs))
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert axes.get_xlim()[0] == 0 and axes.get_ylim()[0] == 0
        of = {line.get_label(): line for line in axes.containers}
        assert list(of) == ["balanced", "oasis", "random", "full"], "in this order at each time"
        assert len(of["random"].lines[0].get_xdata()) == 4, "three ratios, and everything"
        assert len(of["oasis"].lines[0].get_xdata()) == 2
        assert list(of["full"].lines[0].get_xdata()) == [1.0]


def test_no_point_lies_beyond_the_axis_that_the_panels_share(runs):
    # Micro accuracies, which are drawn last, are the higher ones here.
    figure = compute_figure.over_compute(results.variants(runs))
    for axes in figure.axes:
        low, high = axes.get_ylim()
        drawn = [y for of in axes.containers for y in of.lines[0].get_ydata()]
        assert low <= min(drawn) and max(drawn) <= high


def test_the_tables_say_where_random_costs_as_much_and_what_is_gained(runs):
    flops, seconds = compute_figure.tables(results.variants(runs))
    assert flops["title"] == "At equal compute (FLOPs)" and "seconds" in seconds["title"]
    rows = {row[0]: dict(zip(flops["columns"], row, strict=True)) for row in flops["rows"]}
    assert set(rows) == {"oasis, 25 %", "oasis, 50 %", "balanced, 25 %"}
    ours = flops["rows"][[row[0] for row in flops["rows"]].index("oasis, 25 %")]
    assert ours[1:5] == ["38.3\u00a0%", "~38\u00a0%", "68.8\u00a0%", "+31.2 ± 0.0"]
    assert flops["columns"][3:7:3] == ["A_last, macro", "A_last, micro"]


def test_a_policy_with_one_of_the_accuracies_keeps_its_row(runs):
    for run in runs:  # their setting is micro: macro accuracy needs the answers
        if run.label == "balanced":
            run.evaluations[-1].answers = {}
    flops = compute_figure.tables(results.variants(runs))[0]
    assert [len(row) for row in flops["rows"]] == [len(flops["columns"])] * 3
    rows = {row[0]: row[1:] for row in flops["rows"]}
    assert rows["balanced, 25 %"][2:5] == ["–"] * 3 and "–" not in rows["balanced, 25 %"][:2]
    assert rows["balanced, 25 %"][5].endswith("\u00a0%")
    assert rows["oasis, 25 %"][2] == "68.8\u00a0%", "the others have both"


def test_an_axis_of_accuracies_begins_at_chance_where_that_is_known(runs):
    assert [run.chance for run in runs[:2]] == [0.5, 0.5], "two answers a task"
    assert floor(runs, [0.6, 0.55]) == 0.5
    assert floor(runs, [0.6, 0.45]) == 0, "one is below it"
    runs[0].evaluations[-1].answers = {}
    assert floor(runs, [0.6, 0.55]) == 0, "one does not say it"


def test_one_ratio_makes_no_figure(tmp_path):
    made = [Run.load(cell(tmp_path, name, name, 0)) for name in ("oasis", "random")]
    assert compute_figure.over_compute(results.variants(made)) is None
    assert compute_figure.tables(results.variants(made)) == []
