"""The comparison's numbers against scipy and hand-worked ones, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from made_up_grid import POLICIES, cell, grid
from matplotlib.colors import to_hex
from page import Page
from scipy import stats

from oasis.lab import report
from oasis.lab.report import comparison, comparison_figures, results
from oasis.lab.report.recolour import LIGHT, recolour
from oasis.lab.report.runs import Run


def loaded(paths) -> list[Run]:
    return [Run.load(path) for path in paths]


def test_welch_by_hand():
    test = results.welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    # Variances 1 and 4, so t = -2 / sqrt(1/3 + 4/3), with (5/3)^2 / ((1/9 + 16/9) / 2) degrees.
    t, degrees = -2 / math.sqrt(5 / 3), (25 / 9) / (17 / 18)
    assert test.difference == -2 and test.n == (3, 3)
    assert test.p == pytest.approx(2 * stats.t.sf(abs(t), degrees))
    assert not test.significant and results.welch([1, 1.1, 0.9], [5, 5.1, 4.9]).significant


def test_no_test_where_there_is_nothing_to_test():
    one = results.welch([0.5], [0.4, 0.6])
    assert (one.p, one.reason, one.significant) == (None, "one seed: no test", False)
    for other in (0.5, 0.4):  # zero variance would make any difference infinitely significant
        still = results.welch([0.5, 0.5], [other, other])
        assert still.p is None and still.reason == "no spread: no test"


def test_variants_and_marks(tmp_path):
    found = results.variants(loaded(grid(tmp_path)))
    fewer = [(v.label, v.seeds) for v in found if v.ratio == 0.125]
    assert fewer == [("oasis", 3), ("random", 3), ("divbs", 3)]
    here = [v for v in found if v.ratio == 0.25]
    best = max(here, key=lambda v: v.mean("a_last"))
    assert [v.label for v in here if v.mark("a_last") == "best"] == [best.label]
    ours = next(v for v in here if v.label == "oasis")
    assert results.ours_among(here) is ours
    for variant in here:
        if variant is not best:
            p = stats.ttest_ind(
                variant.values("a_last"), best.values("a_last"), equal_var=False
            ).pvalue
            assert variant.against_best["a_last"].p == pytest.approx(p)
            assert variant.mark("a_last") == ("" if p < 0.05 else "close")
        if variant is not ours:
            p = stats.ttest_ind(ours.values("a_avg"), variant.values("a_avg"), equal_var=False)
            assert variant.against_ours["a_avg"].p == pytest.approx(p.pvalue)
    full = next(v for v in found if v.policy == "full")
    assert full.mark("a_last") == "" and full.against_ours["a_last"].n == (3, 3)
    values = ours.values("a_last")
    assert ours.deviation("a_last") == pytest.approx(pd.Series(values).std())


def test_unfinished_runs_are_in_no_test(tmp_path):
    paths = [cell(tmp_path, "oasis", "oasis", seed) for seed in (0, 1)]
    events = (paths[1] / "events.jsonl").read_text().splitlines()
    (paths[1] / "events.jsonl").write_text("\n".join(events[:-1]) + "\n")
    runs = loaded(paths)
    (variant,) = results.variants(runs)
    assert variant.seeds == 1 and len(results.table(runs)) == 2
    assert comparison.seeds_note([variant]).startswith("One seed")


def test_the_page_and_the_tables(tmp_path):
    paths = grid(tmp_path / "runs")
    out = report.write([tmp_path / "runs"], tmp_path / "page" / "report.html")
    text = out.read_text("utf-8")
    page = Page(text)
    assert page.tags.count("svg") == len(comparison.FIGURES)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "src=" not in text and len(page.ids) == len(set(page.ids))
    assert not any(color in text for color in LIGHT if color != LIGHT[color])
    assert set(POLICIES) <= set(page.text) and "Components" in page.text
    assert "oasis: beta" in page.text and "Seeds a variant: 3." in text
    names = {path.name for path in (out.parent / "figures").iterdir()}
    assert names == {f"{name}.png" for name, *_ in comparison.FIGURES}
    frame = pd.read_parquet(out.parent / "results.parquet")
    assert {"a_last_macro", "a_last_micro"} <= set(frame)
    # Each label and ratio but random's, by operations and by seconds; the made-up runs are micro.
    assert len(pd.read_csv(out.parent / "equal_compute.csv")) == 2 * 11
    assert len(frame) == len(pd.read_csv(out.parent / "results.csv")) == len(paths)
    summary = json.loads((out.parent / "results.json").read_text())
    line = next(v for v in summary["variants"] if (v["label"], v["ratio"]) == ("oasis", 0.25))
    mine = frame[(frame.label == "oasis") & (frame.ratio == 0.25)]
    assert line["a_last"]["mean"] == pytest.approx(mine.a_last.mean()) and line["seeds"] == 3
    assert len(line["accuracy_matrix"]) == 3


def test_cost_is_relative_to_ours_of_the_same_ratio(tmp_path):
    bands = comparison.bands(results.variants(loaded(grid(tmp_path))))
    assert [band["title"] for band in bands] == [
        "all samples", "25 % of the samples", "12.5 % of the samples"]  # fmt: skip
    rows = {row["label"]: row for row in bands[1]["rows"]}
    assert rows["oasis"]["flops"] == rows["oasis"]["time"] == 1
    assert rows["random"]["flops"] == pytest.approx(7.5 / 11.5)
    assert bands[0]["rows"][0]["flops"] == pytest.approx(30 / 11.5)


def test_a_task_order_has_its_own_table(tmp_path):
    paths = [cell(tmp_path, "oasis", "oasis", seed) for seed in (0, 1)]
    events = (paths[1] / "events.jsonl").read_text().splitlines()
    start = json.loads(events[0])
    start["tasks"] = start["tasks"][::-1]
    (paths[1] / "events.jsonl").write_text("\n".join([json.dumps(start), *events[1:]]))
    found = results.variants(loaded(paths))
    assert len(found) == 2 and comparison.orders(found)["rows"][0][0] == "oasis, 25 %"


def change(path, **settings):
    """Other settings of a run on disk."""
    given = json.loads((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(json.dumps({**given, **settings}))


def test_runs_of_two_comparisons_are_not_taken_for_one_variant(tmp_path):
    one = [cell(tmp_path / "one", "oasis", "oasis", seed) for seed in (0, 1)]
    two = [cell(tmp_path / "two", "oasis", "oasis", seed) for seed in (2, 3)]
    assert [v.seeds for v in results.variants(loaded(one + two))] == [4]
    change(two[1], repeats=0.3)
    with pytest.raises(
        ValueError, match="both 'oasis', but repeats is 'the default' there and 0.3"
    ):
        results.variants(loaded(one + two))
    change(two[1], repeats=0.0, policy_options={"beta": 0.5})
    with pytest.raises(ValueError, match="but options is {} there and {'beta': 0.5} here"):
        results.variants(loaded(one + two))
    same = cell(tmp_path / "three", "oasis", "oasis", 0)
    with pytest.raises(ValueError, match="both 'oasis' with seed 0; draw"):
        results.variants(loaded([*one, same]))


def test_options_are_compared_among_runs_that_are_otherwise_alike(tmp_path):
    paths = []
    for seed in (0, 1):
        paths += [cell(tmp_path, "oasis", "oasis", seed)]
        paths += [cell(tmp_path, "beta 0.1", "oasis", seed, beta=0.1)]
        paths += [cell(tmp_path, "last block", "oasis", seed)]
        change(paths[-1], layer="last_block")
    runs = loaded(paths)
    (only,) = comparison.options(results.variants(runs))
    assert only["title"] == "oasis: beta" and len(only["rows"]) == 2
    given = results.table(runs).set_index("label").settings
    assert json.loads(given["last block"].iloc[0])["layer"] == "last_block"
    assert "layer" not in json.loads(given["oasis"].iloc[0])


def test_figures_are_of_the_order_that_most_variants_ran_in(tmp_path):
    paths = [cell(tmp_path, name, name, 0) for name in ("oasis", "random", "vanilla")]
    other = cell(tmp_path / "other", "oasis", "oasis", 0)
    lines = (other / "events.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["tasks"] = ["a before all", *first["tasks"][1:]]
    (other / "events.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    found = results.variants(loaded([other, *paths]))
    ((_, alike),) = comparison_figures.by_ratio(found)
    assert [v.label for v in alike] == ["oasis", "random", "vanilla"]
    assert len(comparison.components(found)["rows"]) == 3


def test_tiles_compare_within_their_ratio(tmp_path):
    paths = []
    for seed in (0, 1):
        paths += [cell(tmp_path, name, name, seed) for name in ("oasis", "full")]
        paths += [cell(tmp_path, n, n, seed, 0.125) for n in ("oasis", "random", "divbs")]
    for path in paths:
        if "oasis-0.125" in path.name:
            events = [json.loads(e) for e in (path / "events.jsonl").read_text().splitlines()]
            for event in events:
                if event["type"] == "evaluation":
                    event["accuracy"] = {k: v / 2 for k, v in event["accuracy"].items()}
            text = "".join(json.dumps(event) + "\n" for event in events)
            (path / "events.jsonl").write_text(text)
    found = results.variants(loaded(paths))
    full = next(tile for tile in comparison.tiles(found) if tile["label"] == "full")
    ours = next(v for v in found if (v.label, v.ratio) == ("oasis", 0.125))
    assert full["difference"] == pytest.approx(ours.mean("a_last") - full["a_last"])
    assert full["difference"] < -0.1


def test_a_small_comparison_is_drawn_as_one(tmp_path):
    for seed in (0, 1):
        cell(tmp_path / "runs", "oasis", "oasis", seed)
    out = report.write([tmp_path / "runs"], tmp_path / "page" / "report.html")
    assert (out.parent / "results.csv").exists()
    out = report.write([tmp_path / "runs" / "oasis-0.25-s0"], tmp_path / "one" / "report.html")
    assert not (out.parent / "results.csv").exists()


def test_all_runs_of_a_comparison_are_drawn_as_one_however_few(tmp_path):
    one = cell(tmp_path / "runs", "oasis", "oasis", 0)
    (tmp_path / "compare.yaml").write_text("name: two policies\n")
    cell(tmp_path / "runs", "random", "random", 0)
    out = report.write(tmp_path / "runs", tmp_path / "page" / "report.html")
    assert (out.parent / "results.csv").exists() and "two policies" in out.read_text("utf-8")
    out = report.write(one, tmp_path / "one" / "report.html")
    assert not (out.parent / "results.csv").exists(), "one of them is a run like any other"


def test_variants_trained_otherwise_are_not_compared(tmp_path):
    paths = []
    for seed in (0, 1):
        paths += [cell(tmp_path, name, name, seed) for name in ("oasis", "random", "full")]
        # Long labels have the best made-up accuracy.
        paths.append(cell(tmp_path, "a rate that is fast", "oasis", seed))
        paths.append(cell(tmp_path, "a rate that is fast, top-k", "vanilla", seed))
        for path in paths[-2:]:
            change(path, learning_rate=2e-3)
    found = results.variants(loaded(paths))
    of = {v.label: v for v in found}
    assert "best" in (of["oasis"].mark("a_last"), of["random"].mark("a_last"))
    fast = of["a rate that is fast, top-k"]
    assert fast.mark("a_last") == "best" and fast.against_ours["a_last"].difference == (
        pytest.approx(of["a rate that is fast"].mean("a_last") - fast.mean("a_last"))
    )
    (_, alike), *_ = comparison_figures.by_ratio(found)
    assert not comparison_figures.looks(alike)[fast.label].highlighted
    titles = [band["title"] for band in comparison.bands(found)]
    share = "25 % of the samples"
    assert titles == ["all samples", share, f"{share}, learning_rate 0.002"]
    assert [row[0] for row in comparison.components(found)["rows"]] == ["random", "oasis"]


def test_components_are_draw_and_redundancy_rule_alone(tmp_path):
    paths = [cell(tmp_path, name, name, 0) for name in ("vanilla", "random", "divbs")]
    ours = {"siren": "residual", "ridge": 1, "draw": "top", "beta": 0.9}  # said, not meant
    paths.append(cell(tmp_path, "oasis", "oasis", 0, **ours))
    paths.append(cell(tmp_path, "ORIS", "oasis", 0, siren="none"))
    paths.append(cell(tmp_path, "independent", "oasis", 0, draw="bernoulli"))
    paths.append(cell(tmp_path, "beta", "oasis", 0, beta=0.1))
    paths.append(cell(tmp_path, "loss", "oasis", 0, metric="loss"))
    paths.append(cell(tmp_path, "paper", "oasis", 0, preset="paper"))
    found = results.variants(loaded(paths))
    rows = [row[0] for row in comparison.components(found)["rows"]]
    assert rows == ["random", "vanilla", "ORIS", "independent", "oasis"]
    tables = {table["title"]: table["rows"] for table in comparison.options(found)}
    assert set(tables) == {"oasis: siren", "oasis: draw", "oasis: beta", "oasis: metric"}
    assert [row[0] for row in tables["oasis: beta"]] == [0.1, 0.9]
    assert [row[0] for row in tables["oasis: siren"]] == ["none", "residual"]


def test_ratio_one_is_compared_like_any_other(tmp_path):
    paths = []
    for ratio in (0.25, 1.0):
        paths += [cell(tmp_path, name, name, 0, ratio) for name in ("oasis", "random")]
    paths.append(cell(tmp_path, "full", "full", 0))
    found = results.variants(loaded(paths))
    panels = comparison_figures.by_ratio(found)
    labels = [(ratio, [v.label for v in alike]) for ratio, alike in panels]
    assert labels == [(r, ["oasis", "random", "full"]) for r in (1.0, 0.25)]
    assert [tile["label"] for tile in comparison.tiles(found)] == ["oasis", "random", "full"]


def test_z_of_ours_is_drawn_at_every_ratio(tmp_path):
    paths = [cell(tmp_path, f"a {k}", "oasis", 0, beta=0.1 * (k + 1)) for k in range(6)]
    paths += [cell(tmp_path, "oasis", "oasis", 0, ratio) for ratio in (0.25, 0.125)]
    figure = comparison_figures.qq(results.variants(loaded(paths)))
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names[:2] == ["oasis 25 %", "oasis 12.5 %"] and len(names) == 5


def test_accuracy_over_time_counts_the_tasks_to_come(tmp_path):
    (run,) = loaded([cell(tmp_path, "oasis", "oasis", 0)])
    points = run.accuracy_over_time()
    zero, first, last = run.evaluations[0], run.evaluations[1], run.evaluations[-1]
    tasks = list(zero.accuracy)
    assert points[0] == (0, pytest.approx(sum(zero.accuracy.values()) / 4))
    assert first.after_task == 0
    rest = sum(zero.accuracy[name] for name in tasks if name not in first.accuracy)
    assert points[1] == (
        pytest.approx(first.seconds_before),
        pytest.approx((sum(first.accuracy.values()) + rest) / 4),
    )
    assert len(points) == 5 and points[-1][1] == pytest.approx(run.a_last)
    assert last.seconds_before == pytest.approx(run.score_seconds + run.train_seconds)


def test_labels_keep_apart_and_within():
    places = comparison_figures.apart([0.5, 0.5, 0.52, 0.9], (0.0, 1.0), 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(places, places[1:], strict=False))
    assert places[0] >= 0 and places[-1] <= 1
    assert comparison_figures.apart([0.1, 0.9], (0.0, 1.0), 0.1) == pytest.approx([0.1, 0.9])
    assert comparison_figures.apart([], (0.0, 1.0), 0.1) == []


def test_pngs_have_the_colours_of_the_light_page(tmp_path):
    figure = comparison_figures.accuracy_ranking(results.variants(loaded(grid(tmp_path, 1))))
    recolour(figure)
    labels = [label.get_color() for label in figure.axes[0].get_xticklabels()]
    assert {"#5c656d"} == {to_hex(color) for color in labels}


def free_text(folder: Path, label: str, policy: str, seed: int, loss: float) -> Path:
    """A run on tasks in free text, judged by a held-out loss."""
    path = cell(folder, label, policy, seed)
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for event in lines:
        if event["type"] == "evaluation":
            event |= {"accuracy": {}, "loss": dict.fromkeys(lines[0]["tasks"], loss)}
    lines[-1] |= {"a_last": None, "a_avg": None, "loss": loss}
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_free_text_is_judged_by_its_loss(tmp_path):
    losses = {"oasis": (1.1, 1.2, 1.15), "random": (1.5, 1.52, 1.4), "full": (1.0, 1.05, 0.9)}
    runs = [
        Run.load(free_text(tmp_path, name, name, seed, loss))
        for name, own in losses.items()
        for seed, loss in enumerate(own)
    ]
    found = {v.label: v for v in results.variants(runs)}
    assert found["oasis"].mark("loss") == "best" and found["full"].mark("loss") == ""
    test = found["random"].against_ours["loss"]
    p = stats.ttest_ind(losses["oasis"], losses["random"], equal_var=False).pvalue
    assert test.p == pytest.approx(p) and test.difference == pytest.approx(1.15 - 4.42 / 3)
    assert found["random"].against_best["loss"].p == pytest.approx(p)
    comparison.write(runs, tmp_path / "report.html")
    frame = pd.read_csv(tmp_path / "results.csv")
    assert frame.loc[frame.label == "full", "loss"].tolist() == list(losses["full"])
    page = (tmp_path / "report.html").read_text()
    assert "1.150 <small>held-out loss" in page and "A_last" not in page
    assert page.index(">oasis</td>") < page.index(">random</td>")  # the lesser first
    assert "\u22120.323" in page
