"""The figures of a comparison: many variants, of which a few are told apart by colour.

Ours, random, full training and the best rival have a colour and a marker of their own; the rest of
the field is grey and named beside its mark. As in `figures`, no pyplot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy import stats

from oasis.lab.report.curves import mean_curve
from oasis.lab.report.figures import FULL, GRID, HALF, STYLE, SURFACE, duration, floor
from oasis.lab.report.groups import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION, drawn
from oasis.lab.report.results import Variant, ours_among

ROW = 0.27  # inches a line of a list of variants
MOST_QQ = 5


@dataclass(frozen=True)
class Look:
    color: str = MUTED
    marker: str = "o"
    linestyle: str | tuple = "-"
    highlighted: bool = False


def looks(alike: Sequence[Variant]) -> dict[str, Look]:
    """Looks by label, for the variants of one ratio (and full training). The best rival is one
    that was trained as ours was.
    """
    ours = ours_among(alike)
    rivals = [v for v in alike if v.policy not in ("oasis", "random", "full")]
    rivals = [v for v in rivals if ours is None or v.settings == ours.settings]
    scored = [v for v in rivals if v.mean("a_last") is not None]
    best = max(scored, key=lambda v: v.known("a_last")) if scored else None
    result = {}
    for variant in alike:
        look = Look()
        if variant is ours:
            look = Look(BLUE, "o", "-", True)
        elif variant.policy == "random":
            look = Look(ORANGE, "s", (0, (5, 2)), True)
        elif variant.policy == "full":
            look = Look(INK, "D", (0, (1, 1.5)), True)
        elif variant is best:
            look = Look(VERMILLION, "^", "-", True)
        result[variant.label] = look
    return result


def main_order(found: Sequence[Variant]) -> str:
    """The task order that most variants ran in, of several the first."""
    orders = [variant.order for variant in found]
    return max(dict.fromkeys(orders), key=orders.count, default="")


def by_ratio(found: Sequence[Variant]) -> list[tuple[float, list[Variant]]]:
    """(ratio, its variants and full training), largest ratio first, of the main task order."""
    order = main_order(found)
    here = [v for v in found if v.order == order]
    full = [v for v in here if v.policy == "full"]
    others = [v for v in here if v.policy != "full"]
    ratios = sorted({v.ratio for v in others}, reverse=True)
    return [(r, [v for v in others if v.ratio == r] + full) for r in ratios] or [(1.0, full)]


def accuracy_ranking(found: Sequence[Variant]) -> Figure | None:
    """A_last of every variant: mean and standard deviation over the seeds, and each seed."""
    panels = [(r, _scored(alike, "a_last")) for r, alike in by_ratio(found)]
    panels = [(r, alike) for r, alike in panels if alike]
    if not panels:
        return None
    shown = [variant for _, alike in panels for variant in alike]
    values = [value for variant in shown for value in variant.values("a_last")]
    bottom = floor([run for variant in shown for run in variant.runs], values)
    with rc_context(STYLE):
        axes_list, figure = _panels(panels)
        for axes, (ratio, alike) in zip(axes_list, panels, strict=True):
            look = looks(alike)
            alike = sorted(alike, key=lambda v: v.known("a_last"))
            for row, variant in enumerate(alike):
                shown = look[variant.label]
                values = variant.values("a_last")
                deviation = variant.deviation("a_last") or 0.0
                axes.plot(values, [row] * len(values), "|", color=shown.color, alpha=0.6, ms=7)
                axes.errorbar(
                    variant.known("a_last"),
                    row,
                    xerr=deviation,
                    fmt=shown.marker,
                    color=shown.color,
                    linewidth=1.4,
                    markersize=6 if shown.highlighted else 4.5,
                    clip_on=False,  # the best one lies at the very edge
                )
                if variant.policy == "full":
                    axes.axvline(variant.known("a_last"), color=INK, linewidth=1, linestyle=":")
            _name_rows(axes, [v.label for v in alike], [look[v.label] for v in alike])
            axes.set_title(f"{100 * ratio:g} % of the samples" if ratio < 1 else "all samples")
            percent_ticks(axes.xaxis)
            axes.set_xlim(left=bottom)
            axes.set_xlabel("A_last")
        return figure


def over_candidates(found: Sequence[Variant]) -> Figure | None:
    """Mean accuracy over the tasks so far at each task boundary."""
    axes = ("candidates seen", "mean accuracy, tasks so far")
    return _curves(found, lambda r: r.seen_accuracy(), axes, "{:,.0f}".format, _label_column)


def over_seconds(found: Sequence[Variant]) -> Figure | None:
    """Mean accuracy over all tasks against the seconds of scoring and training."""
    axes = ("time of scoring and training", "mean accuracy, all tasks")
    return _curves(found, lambda r: r.accuracy_over_time(), axes, _duration, _label_highlighted)


def _duration(seconds: float) -> str:
    return duration(max(seconds, 0.0))


def _curves(
    found: Sequence[Variant],
    points: Callable,
    axis_names: tuple[str, str],
    ticks: Callable,
    label: Callable,
) -> Figure | None:
    ratio, alike = max(by_ratio(found), key=lambda pair: len(pair[1]))
    lines = [(v, mean_curve([points(run) for run in v.runs])) for v in alike]
    lines = [(variant, curve) for variant, curve in lines if len(curve)]
    if not lines:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(FULL, 4.6), layout="constrained")
        axes = figure.subplots()
        look = looks(alike)
        lines.sort(key=lambda pair: look[pair[0].label].highlighted)
        for variant, curve in lines:
            shown = look[variant.label]
            axes.plot(
                *curve.T,
                color=shown.color,
                linestyle=shown.linestyle,
                marker=shown.marker if shown.highlighted else None,
                linewidth=2.1 if shown.highlighted else 1.0,
                alpha=1.0 if shown.highlighted else 0.55,
                label=drawn(variant.label),
                markeredgecolor=SURFACE,
                markeredgewidth=0.8,
            )
        runs = [run for variant, _ in lines for run in variant.runs]
        axes.set_ylim(bottom=floor(runs, [value for _, curve in lines for value in curve[:, 1]]))
        label(axes, [(v.label, tuple(c[-1]), look[v.label]) for v, c in lines])
        axes.set_title(f"{100 * ratio:g} % of the samples, and full training")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: ticks(value)))
        axes.set_xlabel(axis_names[0])
        percent_ticks(axes.yaxis)
        axes.set_ylabel(axis_names[1])
        return figure


def cost(found: Sequence[Variant]) -> Figure | None:
    """Seconds and operations of scoring and training, relative to ours."""
    ratio, alike = max(by_ratio(found), key=lambda pair: len(pair[1]))
    ours = ours_among([v for v in alike if v.ratio == ratio]) or alike[0]
    kinds = [("seconds", "score_seconds", "train_seconds"), ("FLOPs", "score_flops", "train_flops")]
    kinds = [
        kind
        for kind in kinds
        if all((v.mean(kind[1]) is not None and v.mean(kind[2])) for v in alike)
    ]
    if not kinds:
        return None
    alike = sorted(alike, key=lambda v: -(v.known(kinds[0][1]) + v.known(kinds[0][2])))
    look = looks(alike)
    with rc_context(STYLE):
        figure = Figure(figsize=(FULL, ROW * len(alike) + 1.3), layout="constrained")
        grid = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, (name, scoring, training) in zip(grid, kinds, strict=True):
            whole = ours.known(scoring) + ours.known(training)
            left = np.zeros(len(alike))
            for part, color in ((scoring, PURPLE), (training, GREEN)):
                width = np.array([v.known(part) / whole for v in alike])
                edge = {"edgecolor": SURFACE, "linewidth": 1}
                axes.barh(range(len(alike)), width, 0.66, left=left, color=color, **edge)
                left += width
            for row, total in enumerate(left):
                place = {"xycoords": "data", "textcoords": "offset points", "va": "center"}
                axes.annotate(f"{total:.2f}", (total, row), (4, 0), fontsize=8, **place)
            axes.axvline(1, color=BLUE, linewidth=1, linestyle=":")
            axes.set_xlabel(f"{name}, {ours.label} = 1")
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x")
            axes.margins(x=0.1)
        _name_rows(grid[0], [v.label for v in alike], [look[v.label] for v in alike])
        parts = [Patch(color=PURPLE, label="scoring"), Patch(color=GREEN, label="training")]
        figure.legend(handles=parts, loc="outside upper left", ncols=2)
        return figure


def density_and_skew(found: Sequence[Variant]) -> Figure | None:
    """Density of the selected samples, and skew over the tasks; lower is more varied, more even."""
    ratio, alike = max(by_ratio(found), key=lambda pair: len(pair[1]))
    metrics = [m for m in ("density", "skew") if _scored(alike, m)]
    if not metrics:
        return None
    alike = [v for v in alike if all(v.values(m) for m in metrics)]
    alike = sorted(alike, key=lambda v: -v.known(metrics[0]))
    if not alike:
        return None
    look = looks(alike)
    with rc_context(STYLE):
        figure = Figure(figsize=(FULL, ROW * len(alike) + 1.1), layout="constrained")
        grid = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        titles = {
            "density": "density: mean similarity of pairs",
            "skew": "skew: largest less smallest share of a task",
        }
        for axes, metric in zip(grid, metrics, strict=True):
            for row, variant in enumerate(alike):
                shown = look[variant.label]
                deviation = variant.deviation(metric) or 0.0
                # clip_on: the skew of training on everything is 0.
                style = {
                    "color": shown.color,
                    "fmt": shown.marker,
                    "markersize": 5,
                    "clip_on": False,
                }
                axes.errorbar(variant.mean(metric), row, xerr=deviation, linewidth=1.3, **style)
            axes.set_xlabel(titles[metric])
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x")
        _name_rows(grid[0], [v.label for v in alike], [look[v.label] for v in alike])
        return figure


def selected_per_task(found: Sequence[Variant]) -> Figure | None:
    """Share of each task's candidates that each variant selected, as a table of shades."""
    ratio, alike = max(by_ratio(found), key=lambda pair: len(pair[1]))
    alike = [v for v in alike if v.policy != "full" and any(r.selected for r in v.runs)]
    if not alike:
        return None
    tasks = alike[0].runs[0].tasks
    shares = []
    for variant in alike:
        counts = np.array([run.per_task() for run in variant.runs]).sum(axis=0)
        shares.append(counts[:, 0] / np.maximum(counts[:, 1], 1))
    shares = np.array(shares)
    with rc_context(STYLE):
        figure = Figure(figsize=(FULL, ROW * len(alike) + 1.0), layout="constrained")
        axes = figure.subplots()
        top = max(shares.max(), 1e-9)
        for row, values in enumerate(shares):
            for column, share in enumerate(values):
                box = {"color": BLUE, "alpha": 0.08 + 0.5 * share / top, "linewidth": 0}
                axes.barh(row, 0.96, 0.92, left=column - 0.48, **box)
                text = f"{100 * share:.0f} %"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=INK)
        axes.set_xticks(range(len(tasks)), tasks)
        axes.xaxis.tick_top()
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        look = looks(alike)
        _name_rows(axes, [v.label for v in alike], [look[v.label] for v in alike])
        axes.invert_yaxis()
        axes.grid(visible=False)
        return figure


def qq(found: Sequence[Variant]) -> Figure | None:
    """Quantiles of z against those of N(0, 1): ours at every ratio, then others, as many as can be
    told apart.
    """
    panels = by_ratio(found)
    ours = [ours_among([v for v in alike if v.ratio == ratio]) for ratio, alike in panels]
    ours = [variant for variant in ours if variant is not None]
    others = [v for _, alike in panels for v in alike if all(v is not o for o in ours)]
    shown = []
    for variant in [*ours, *others]:
        if len(shown) == MOST_QQ:
            break
        z = np.array([value for run in variant.runs for value in run.relative()])
        if len(z) > 1:
            shown.append((variant, np.sort(z)))
    if not shown:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(HALF, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axline((0, 0), slope=1, color=INK, linewidth=1.2, linestyle=":")
        colors = (BLUE, VERMILLION, GREEN, PURPLE, SKY)
        for (variant, z), color in zip(shown, colors, strict=False):
            at = np.linspace(0.001, 0.999, 200)
            label = f"{drawn(variant.label)} {100 * variant.ratio:g} %"
            axes.plot(stats.norm.ppf(at), np.quantile(z, at), color=color, label=label)
        axes.set_xlabel("quantile of N(0, 1)")
        axes.set_ylabel("quantile of z")
        axes.set_ylim(-6, 6)
        axes.legend(loc="upper left", fontsize=8)
        return figure


def _scored(alike: Sequence[Variant], metric: str) -> list[Variant]:
    return [variant for variant in alike if variant.values(metric)]


def _panels(panels: Sequence) -> tuple[list[Axes], Figure]:
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    most = max(len(alike) for _, alike in panels)
    size = (FULL if columns > 1 else 0.75 * FULL, rows * (ROW * most + 1.0))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return list(grid.flat[: len(panels)]), figure


def _name_rows(axes: Axes, names: Sequence[str], shown: Sequence[Look]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    for label, look in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_color(INK if look.highlighted else MUTED)
        label.set_fontweight("bold" if look.highlighted else "normal")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID)


def _label_column(axes: Axes, ends: Sequence[tuple[str, tuple[float, float], Look]]) -> None:
    """Names in a column right of the plot, each with a thin line to its curve's end."""
    ends = sorted(ends, key=lambda end: end[1][1])
    places = apart([end[1][1] for end in ends], axes.get_ylim(), 0.042)
    axes.set_xlim(right=1.02 * max(end[1][0] for end in ends))
    for (name, end, look), place in zip(ends, places, strict=True):
        line = {"arrowstyle": "-", "color": GRID, "linewidth": 0.9, "relpos": (0, 0.5)}
        axes.annotate(
            name,
            end,
            xytext=(1.03, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
            arrowprops=line | {"shrinkA": 1, "shrinkB": 2},
            annotation_clip=False,
            **_ink(look),
        )


def _label_highlighted(axes: Axes, ends: Sequence[tuple[str, tuple[float, float], Look]]) -> None:
    """Names of the highlighted curves, each beside its end."""
    ends = sorted((end for end in ends if end[2].highlighted), key=lambda end: end[1][1])
    places = apart([end[1][1] for end in ends], axes.get_ylim(), 0.06)
    axes.set_xlim(right=1.08 * max((end[1][0] for end in ends), default=1.0))
    for (name, (x, _), look), place in zip(ends, places, strict=True):
        offset: Any = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (x, place), fontsize=8.5, **offset, **_ink(look))


def _ink(look: Look) -> Any:
    weight = "bold" if look.highlighted else "normal"
    return {"color": INK if look.highlighted else MUTED, "fontweight": weight}


def apart(values: Sequence[float], limits: tuple[float, float], share: float) -> list[float]:
    """Rising `values` moved to be at least `share` of the range between the `limits` from each
    other, about where they were, and within the limits where there is room.
    """
    low, high = limits
    gap = share * (high - low)
    places = list(values)
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + gap)
    if places:
        shift = (sum(values) - sum(places)) / len(places)
        shift = max(min(shift, high - places[-1]), low - places[0])
        places = [place + shift for place in places]
    return places


def percent_ticks(axis) -> None:
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
