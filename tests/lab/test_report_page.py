"""What a page says to a pointer, a printer, a phone and a screen reader, without a browser."""

import json
import re

import pytest
from runs_on_disk import evaluation, selection, start, step, write_events

from oasis.lab.report import curves, figures, groups, hover, html
from oasis.lab.report.runs import Run


def events(policy, losses):
    made = [start(policy, tasks=["a"]), evaluation(-1, {"a": 0.25})]
    for k, loss in enumerate(losses):
        made.append(selection(k, [0] * 4, [True, False, False, False], threshold=1.0 + k))
        made.append(step(k + 1) | {"loss": loss})
    return [*made, evaluation(0, {"a": 0.75}), {"type": "end", "seconds": 9.0}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    whole = write_events(folder / "oasis", events("oasis", [4.0, None, 2.0]))
    part = write_events(folder / "random", events("random", [3.0, 3.0, 3.0])[:-2])
    return [Run.load(whole), Run.load(part)]


@pytest.fixture(scope="module")
def page(runs):
    return html.render(runs)


def test_unfinished_runs_are_grey_and_say_so(runs, page):
    ours, random = groups.group(runs)
    assert (ours.label, random.label) == ("oasis", "random, unfinished")
    assert random.color == groups.FADED != ours.color
    assert '<div class="tile unfinished"' in page and "random, unfinished" in page


def test_finished_and_unfinished_runs_make_no_common_mean(runs, tmp_path):
    part = write_events(tmp_path / "oasis", events("oasis", [1.0])[:-1])
    found = groups.group([runs[0], Run.load(part)])
    assert [(g.label, len(g.runs)) for g in found] == [("oasis", 1), ("oasis, unfinished", 1)]


def test_curves_of_loss_and_threshold(runs):
    found = groups.group(runs)
    (ours, random) = curves.loss(found).axes[0].lines
    assert ours.get_xydata().tolist() == [[3, 3.0]], "mean over the two steps that trained"
    assert random.get_ydata().tolist() == [3.0] and curves.loss(found).axes[0].get_ylim()[0] == 0
    assert curves.threshold(found).axes[0].lines[0].get_xydata().tolist() == [
        [1, 1.0], [2, 2.0], [3, 3.0]]  # fmt: skip
    assert curves.loss([]) is None


def test_a_curve_is_where_the_pointer_is_told_it_is(runs):
    figure = figures.accuracy(groups.group(runs))
    html.to_svg(figure)  # lays it out
    (panel,) = hover.panels(figure, html.VARIABLES)
    (curve,) = panel["curves"]
    assert curve == {"name": "oasis", "color": "blue", "points": [[12.0, 0.75]]}
    assert panel["percent"] == [False, True] and panel["name"] == "candidates seen"
    left, top, right, bottom = panel["box"]
    (axes,) = figure.axes
    x, y = axes.transData.transform((12, 0.75)) * 72 / figure.dpi  # as matplotlib places it
    low, high = panel["x"]
    assert left + (12 - low) / (high - low) * (right - left) == pytest.approx(x, abs=0.2)
    low, high = panel["y"]
    height = figure.get_size_inches()[1] * 72
    place = bottom - (0.75 - low) / (high - low) * (bottom - top)
    assert place == pytest.approx(height - y, abs=0.2)
    assert hover.ends([panel]) == "oasis ends at 75.0 %"


def test_every_figure_is_described_and_every_curve_is_data(page):
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', page)
    assert len(labels) == page.count("<svg ") and all(": " in label for label in labels)
    assert any(label.endswith("oasis ends at 75.0 %") for label in labels)
    found = re.findall(r'<script type="application/json" class="hover">(.*?)</script>', page)
    assert len(found) >= 4 and all(json.loads(data)[0]["curves"] for data in found)


def test_what_scrolls_can_be_reached_and_is_named(page):
    scrolls = re.findall(r'<div class="scroll"[^>]*>', page)
    assert scrolls and all('tabindex="0"' in s and "aria-label=" in s for s in scrolls)


def test_names_cannot_end_the_script():
    assert "</script>" not in hover.as_json([{"name": "</script><b>"}])


def test_print_is_light_and_phones_have_one_column(page):
    assert "@media screen and (prefers-color-scheme: dark)" in page and "@media print" in page
    assert "@media (max-width: 860px)" in page and 'name="viewport"' in page
