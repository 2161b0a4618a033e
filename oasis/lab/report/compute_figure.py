"""Accuracy over compute, as a figure and as tables beside random of equal compute."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oasis.lab.report import html
from oasis.lab.report.comparison_figures import Look, looks, main_order, percent_ticks
from oasis.lab.report.compute import (
    AVERAGES,
    MEASURES,
    Equal,
    Point,
    alike,
    at_equal_compute,
    curve,
    points,
)
from oasis.lab.report.figures import FULL, STYLE, SURFACE, duration, floor
from oasis.lab.report.groups import BLUE, GREEN, MUTED, drawn
from oasis.lab.report.results import Variant, ours_among

OURS, BALANCED = Look(BLUE, "o", "-", True), Look(GREEN, "v", "-", True)


def over_compute(found: Sequence[Variant]) -> Figure | None:
    """A_last, macro and micro, against what scoring and training cost, one curve a policy."""
    shown = alike(found, main_order(found))
    panels = {(m, a): points(shown, m, a) for m in MEASURES for a in AVERAGES}
    measures = [m for m in MEASURES if any(panels[m, a] for a in AVERAGES)]
    averages = [a for a in AVERAGES if any(panels[m, a] for m in MEASURES)]
    lines = [curve(made, p.label) for made in panels.values() for p in made]
    if all(len(line) < 2 for line in lines):  # a single ratio is no curve
        return None
    look = _looks(shown)
    reached = [point.accuracy for made in panels.values() for point in made]
    bottom = floor([run for variant in shown for run in variant.runs], reached)
    with rc_context(STYLE):
        figure = Figure(figsize=(FULL, 4.1 * len(averages) + 0.4), layout="constrained")
        grid = figure.subplots(len(averages), len(measures), sharey=True, squeeze=False)
        for row, average in zip(grid, averages, strict=True):
            for axes, measure in zip(row, measures, strict=True):
                _panel(axes, panels[measure, average], look)
                axes.set_xlabel(f"{measure} of scoring and training")
                if _whole(panels[measure, average]):
                    axes.set_xlabel(f"{measure} of scoring and training, of those of full training")
            row[0].set_ylabel(f"A_last, {average} accuracy")
        grid[0, 0].set_ylim(bottom=bottom)  # of all, and last: the upper end is settled with it
        known = {text: handle for axes in grid.flat for handle, text in _legend_of(axes)}
        figure.legend(known.values(), known.keys(), loc="outside upper left", ncols=6)
        return figure


def _looks(shown: Sequence[Variant]) -> dict[str, Look]:
    """By label, of all ratios: what is told apart at one of them is told apart at all."""
    found = looks(shown)
    if (ours := ours_among(shown)) is not None:
        found[ours.label] = OURS
    for variant in shown:
        if variant.policy == "balanced":
            found[variant.label] = BALANCED
    return found


def _legend_of(axes: Axes) -> list[tuple[Any, str]]:
    return list(zip(*axes.get_legend_handles_labels(), strict=True))


def _whole(found: Sequence[Point]) -> float | None:
    """What training on everything costs."""
    return next((point.cost for point in found if point.policy == "full"), None)


def _panel(axes: Axes, found: Sequence[Point], look: dict[str, Look]) -> None:
    unit = _whole(found) or 1.0
    policy = {p.label: p.policy for p in found}
    # Training on everything comes last: it lies on the end of random's curve.
    for label in sorted(policy, key=lambda name: (look[name].highlighted, policy[name] == "full")):
        line, shown = curve(found, label), look[label]
        spread = [statistics.stdev(a for _, a in p.seeds.values()) if len(p.seeds) > 1 else 0.0
                  for p in line]  # fmt: skip
        axes.errorbar(
            [point.cost / unit for point in line],
            [point.accuracy for point in line],
            yerr=spread if shown.highlighted else None,
            color=shown.color,
            linestyle=shown.linestyle,
            marker=shown.marker,
            linewidth=2.0 if shown.highlighted else 1.0,
            elinewidth=0.9,
            markersize=6 if shown.highlighted else 3.5,
            markeredgecolor=SURFACE,
            markeredgewidth=0.8,
            alpha=1.0 if shown.highlighted else 0.7,
            label=drawn(label) if shown.highlighted else None,
        )
        if not shown.highlighted:
            place: Any = {"xytext": (4, -2), "textcoords": "offset points", "va": "top"}
            end = (line[-1].cost / unit, line[-1].accuracy)
            axes.annotate(label, end, fontsize=7, color=MUTED, **place)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    if unit != 1.0:
        percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)


def tables(found: Sequence[Variant]) -> list[dict[str, Any]]:
    """Of each measure of compute: the policies, and random where it costs as much."""
    shown = alike(found, main_order(found))
    return [table for measure in MEASURES if (table := _table(measure, shown))]


def _table(measure: str, shown: Sequence[Variant]) -> dict[str, Any] | None:
    by = {average: points(shown, measure, average) for average in AVERAGES}
    equal = {average: at_equal_compute(found) for average, found in by.items()}
    known = [average for average in AVERAGES if equal[average]]
    if not known:
        return None
    whole = next(filter(None, map(_whole, by.values())), None)
    # A policy may have one of the accuracies alone, where another version wrote its record.
    beside: dict[tuple[str, float], dict[str, Equal]] = {}
    for average in known:
        for one in equal[average]:
            beside.setdefault((one.point.label, one.point.ratio), {})[average] = one
    rows = [
        [*_about(list(own.values()), measure, whole), *chain(*(_cells(own.get(a)) for a in known))]
        for _, own in sorted(beside.items())
    ]
    columns = ["policy", "cost of full" if whole else measure, "random of that cost"]
    for average in known:
        columns += [f"A_last, {average}", "less random's", "random as good"]
    caption = (
        f"By {measure} of scoring and training: at which share of the samples random costs as "
        "much, how far the policy is above it there, and from which share on random is as good. "
        "Random is interpolated between its ratios, up to training on everything, for each seed on "
        "its own; ±: standard deviation of the difference over the seeds. –: beyond those ratios, "
        "or not in the record."
    )
    return {"title": f"At equal compute ({measure})", "caption": caption, "columns": columns,
            "rows": rows, "wide": True}  # fmt: skip


def _about(own: Sequence[Equal], measure: str, whole: float | None) -> list[str]:
    """The policy, what it costs, and the share at which random costs as much."""
    point = own[0].point
    cost = html.percent(point.cost / whole) if whole else _amount(measure, point)
    share = next((one.share for one in own if one.share is not None), None)
    return [f"{point.label}, {100 * point.ratio:g} %", cost, _approximately(share)]


def _cells(own: Equal | None) -> list[str]:
    """How good the policy is by one of the accuracies, which it may not have."""
    if own is None:
        return ["–"] * 3
    return [html.percent(own.point.accuracy), _more(own), _approximately(own.reached)]


def _amount(measure: str, point: Point) -> str:
    return duration(point.cost) if measure == "seconds" else f"{point.cost:.2e}"


def _approximately(share: float | None) -> str:
    return "–" if share is None else f"~{100 * share:.0f}\u00a0%"


def _more(equal: Equal) -> str:
    if equal.difference is None:
        return "–"
    text = f"{100 * equal.difference:+.1f}".replace("-", "\u2212")
    return text if equal.deviation is None else f"{text} ± {100 * equal.deviation:.1f}"
