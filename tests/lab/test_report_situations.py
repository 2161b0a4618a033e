"""Which runs are one, which are several, and labels in every script: what reports get wrong."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from made_up_grid import cell
from runs_on_disk import TASKS, evaluation, made_up, selection, start, step, write_events

from oasis.lab import report
from oasis.lab.report import comparison_figures, figures, groups, html, results
from oasis.lab.report.folders import find, load_all

LABELS = ["random $a_$", "_first", "cost $5 vs $6", "a-b", "выбор", "選択", "$\\frac{1}{"]


def relabelled(path, label: str, **start_more):
    """A made-up run whose start event says `label`."""
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    lines[0] |= {"label": label, **start_more}
    return write_events(path, lines)


def test_the_same_run_by_several_paths_counts_once(tmp_path, monkeypatch):
    run = made_up(tmp_path / "runs" / "a", "oasis")
    other = made_up(tmp_path / "runs" / "b", "random")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "runs", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    paths = ["runs/a", run, os.path.join("runs", "..", "runs", "a"), link / "a", link, "runs"]
    assert [path.resolve() for path in find(paths)] == [run, other]


def test_folders_of_one_name_are_runs_of_their_own(tmp_path):
    paths = [made_up(tmp_path / f"seed{s}" / "oasis", "oasis", seed=s, batches=4) for s in range(3)]
    runs = load_all(find(paths))
    assert [run.name for run in runs] == ["seed0/oasis", "seed1/oasis", "seed2/oasis"]
    page = report.write(paths, tmp_path / "out" / "report.html").read_text("utf-8")
    summary = json.loads((tmp_path / "out" / "results.json").read_text())
    (variant,) = summary["variants"]
    assert variant["seeds"] == 3
    assert sorted(variant["accuracy_matrix"]) == [run.name for run in runs]
    assert all(run.name in page for run in runs)


def test_a_name_that_is_the_end_of_another_is_still_told_apart(tmp_path):
    paths = [made_up(tmp_path / name, "oasis", seed=s) for s, name in enumerate(["a", "b/a"])]
    first, second = (run.name for run in load_all(paths))
    assert first != second and second == "b/a"


def test_runs_of_other_models_are_groups_of_their_own(tmp_path):
    paths = [made_up(tmp_path / str(s), "oasis", seed=s, batches=4) for s in range(2)]
    relabelled(paths[1], "oasis", model="another")
    found = groups.group(load_all(paths))
    assert [len(group.runs) for group in found] == [1, 1]
    assert [g.label for g in found] == [
        "oasis · model SmolLM2-135M-Instruct",
        "oasis · model another",
    ]
    page = report.write(paths, tmp_path / "report.html").read_text("utf-8")
    assert "mean of 2" not in page and "oasis · model another" in page


def test_runs_of_other_settings_are_groups_of_their_own(tmp_path):
    paths = [made_up(tmp_path / str(s), "oasis", seed=s, batches=4) for s in range(3)]
    for path, rank in zip(paths, (16, 8, 8), strict=True):
        (path / "config.yaml").write_text(f"policy: oasis\nheld_out: 400\nrank: {rank}\n")
    found = groups.group(load_all(paths))
    assert [(g.label, len(g.runs)) for g in found] == [
        ("oasis · rank 16", 1),
        ("oasis · rank 8", 2),
    ]
    for path in paths:  # what changes no result makes no other group
        (path / "config.yaml").write_text(f"policy: oasis\nheld_out: 400\nname: {path.name}\n")
    assert [(g.label, len(g.runs)) for g in groups.group(load_all(paths))] == [("oasis", 3)]


def test_runs_of_other_tasks_are_refused_on_one_page(tmp_path):
    one = made_up(tmp_path / "one", "oasis")
    other = write_events(tmp_path / "other", [start("oasis", tasks=["x", "y"])])
    with pytest.raises(ValueError, match="one has the tasks sentiment, .* but .*other has x, y"):
        report.write([one, other], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_another_order_of_the_tasks_is_another_group_with_its_own_counts(tmp_path):
    paths = []
    for name, tasks in (("ab", ["a", "b"]), ("ba", ["b", "a"])):
        events = [
            start("oasis", tasks=tasks),
            selection(0, [0, 0, 1, 0], [True, True, False, False]),
        ]
        events += [step(1), evaluation(0, {"a": 0.5, "b": 0.5}), {"type": "end", "seconds": 3.0}]
        paths.append(write_events(tmp_path / name, events))
    found = groups.group(load_all(paths))
    assert [group.label for group in found] == ["oasis · tasks a > b", "oasis · tasks b > a"]
    bars = figures.selected_per_task(found).axes[0].patches
    heights = [round(bar.get_height(), 3) for bar in bars]
    assert heights == [
        round(2 / 3, 3),
        0,
        0,
        round(2 / 3, 3),
    ]  # a and b of each


@pytest.mark.parametrize("shift", [0.0, 1e-15])
def test_values_that_differ_by_rounding_alone_have_no_spread(shift):
    ours = [0.7, 0.7 + shift, 0.7 - shift]
    test = results.welch(ours, [0.6 + shift, 0.6, 0.6])
    assert test.p is None and test.reason == "no spread: no test"
    assert test.difference == pytest.approx(0.1)
    assert results.welch(ours, [0.6, 0.61, 0.62]).p is not None  # one side varies
    assert results.welch([0.7, 0.7001, 0.7], [0.6, 0.6, 0.6]).p is not None  # one example of 10,000


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text"))]


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_drawn_as_written_on_the_page_of_single_runs(tmp_path, label):
    path = relabelled(made_up(tmp_path / "run", "oasis", batches=4), label)
    other = made_up(tmp_path / "other", "random", batches=4)
    found = groups.group(load_all([path, other]))
    for draw in (figures.accuracy, figures.selected_per_task, figures.realised_ratio):
        legend = draw(found).axes[0].get_legend()
        assert legend is not None
        shown = [text.get_text().lstrip("\N{WORD JOINER}") for text in legend.get_texts()]
        assert label in shown, draw.__name__
    for draw in (figures.relative, figures.task_accuracy, figures.wall_clock):
        drawn = [text.lstrip("\N{WORD JOINER}") for text in texts(draw(found))]
        assert any(text.startswith(label) for text in drawn), draw.__name__
    for draw in (figures.accuracy, figures.relative):
        svg = str(html.inline_svg(html.to_svg(draw(found)), "f0-", "x"))
        assert label.replace("&", "&amp;") in svg, draw.__name__  # as text, no mathematics


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_drawn_as_written_on_the_page_of_a_comparison(tmp_path, label):
    paths = []
    for seed in range(2):
        for name, policy in (("ours", "oasis"), ("random", "random"), ("full", "full")):
            paths.append(cell(tmp_path / "g", name, policy, seed))
        paths[-3] = relabelled(paths[-3], label)
    found = results.variants(load_all(paths))
    for draw in (comparison_figures.accuracy_ranking, comparison_figures.qq):
        drawn = [text.lstrip("\N{WORD JOINER}") for text in texts(draw(found))]
        assert any(text.startswith(label) for text in drawn), draw.__name__
    if label.isascii():  # PNG files need a font that has the script
        assert report.write(paths, tmp_path / "out" / "r.html").is_file()


def test_tasks_named_in_any_way_are_drawn(tmp_path):
    renamed = dict(zip(TASKS, ["$x_", "_y", "a/b", "a b"], strict=True))
    text = (made_up(tmp_path / "run", "oasis", batches=4) / "events.jsonl").read_text()
    for old, new in renamed.items():
        text = text.replace(f'"{old}"', json.dumps(new))
    (tmp_path / "run" / "events.jsonl").write_text(text)
    found = groups.group(load_all([tmp_path / "run"]))
    figure = figures.selected_per_task(found)
    html.to_svg(figure)
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == [*renamed.values()]
    assert [axes.get_title("left") for axes in figures.task_accuracy(found).axes] == ticks


def test_a_copy_elsewhere_is_another_run(tmp_path):
    made_up(tmp_path / "a", "oasis")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert len(find([tmp_path / "a", tmp_path / "b"])) == 2
