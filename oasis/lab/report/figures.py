"""The figures of the report. Each takes groups of runs and returns a matplotlib Figure, or None
where the runs hold nothing to draw. No pyplot: nothing global is touched, no display is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from oasis.lab.report.groups import GREEN, INK, MUTED, PURPLE, Group, drawn
from oasis.lab.report.runs import Run

GRID, SURFACE = "#070809", "#0a0b0c"  # stand-ins for CSS variables, as INK
HALF, FULL = 5.8, 11.9  # widths in inches: half a page, a whole page
WINDOW = 20  # batches in the running ratio
Z_RANGE = 5.0

# For scripts that DejaVu Sans lacks; in the page the reader's own fonts have them.
WIDE = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Unifont", "PingFang SC")
INSTALLED = {font.name for font in fontManager.ttflist}

STYLE: Any = {
    "font.family": "sans-serif",
    # The first comes with matplotlib; the page's own font replaces it.
    "font.sans-serif": ["DejaVu Sans", *(name for name in WIDE if name in INSTALLED)],
    "font.size": 9,
    "text.parse_math": False,  # a label is drawn as written, with its dollars and all
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.9,
    "lines.markersize": 5,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "oasis",  # same runs, same bytes
}


def accuracy(groups: Sequence[Group]) -> Figure | None:
    """Mean accuracy over the tasks seen so far, at each task boundary."""
    with rc_context(STYLE):
        figure, axes = single(HALF, 3.5)
        for group in groups:
            _curve(axes, group, [run.seen_accuracy() for run in group.runs])
        if not axes.lines:
            return None
        _candidate_axis(axes)
        _percent_axis(axes)
        axes.set_ylim(bottom=_floor_of(groups))
        axes.set_ylabel("mean accuracy, tasks so far")
        legend(axes)
        return figure


def task_accuracy(groups: Sequence[Group]) -> Figure | None:
    """One small plot a task; the shaded band is the time in which its samples arrive."""
    tasks = _tasks(groups)
    if not any(run.task_accuracy(task) for g in groups for run in g.runs for task in tasks):
        return None
    with rc_context(STYLE):
        columns = min(4, len(tasks))
        rows = math.ceil(len(tasks) / columns)
        figure = Figure(figsize=(FULL, 1.9 * rows + 0.7), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        arrival = _arrivals(groups)
        for k, (axes, task) in enumerate(zip(grid.flat, tasks, strict=False)):
            if task in arrival:
                axes.axvspan(*arrival[task], color=GRID, alpha=0.55, linewidth=0)
            for group in groups:
                _curve(axes, group, [run.task_accuracy(task) for run in group.runs])
            axes.set_title(task)
            if k + columns >= len(tasks):
                _candidate_axis(axes)
                axes.tick_params(labelbottom=True)
            if k % columns == 0:
                _percent_axis(axes)
                axes.set_ylabel("accuracy")
        grid.flat[0].set_ylim(bottom=0)  # of all
        for axes in grid.flat[len(tasks) :]:
            axes.set_visible(False)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=6)
        return figure


def selected_per_task(groups: Sequence[Group]) -> Figure | None:
    """Share of each task's candidates that was selected; the count stands over the bar."""
    tasks = _tasks(groups)
    shown = _partial(groups)
    if not tasks or not any(run.selected for group in shown for run in group.runs):
        return None
    with rc_context(STYLE):
        figure, axes = single(HALF, 3.5)
        width = 0.8 / len(shown)
        for k, group in enumerate(shown):
            counts = np.array([_per_task(run, tasks) for run in group.runs])
            selected, candidates = counts.sum(axis=0).T
            share = selected / np.maximum(candidates, 1)
            x = np.arange(len(tasks)) + (k - (len(shown) - 1) / 2) * width
            bars = axes.bar(x, share, width * 0.92, color=group.color, label=drawn(group.label))
            if len(tasks) * len(shown) <= 24:
                mean = selected / len(counts)
                text = [f"{count:,.0f}" for count in mean]
                # The box keeps a count legible where the target line runs through it.
                box = {"facecolor": SURFACE, "edgecolor": "none", "pad": 0.6}
                axes.bar_label(bars, text, padding=2.5, fontsize=7, color=MUTED, bbox=box)
        _targets(axes, shown)
        axes.set_xticks(range(len(tasks)), tasks)
        if sum(map(len, tasks)) > 60:
            axes.tick_params(axis="x", rotation=35)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.12)
        _percent_axis(axes)
        axes.set_ylabel("selected of the task's candidates")
        legend(axes)
        return figure


def relative(groups: Sequence[Group]) -> Figure | None:
    """Histogram of z over all candidates, beside the N(0, 1) that the threshold assumes."""
    shown = [(g, np.array([z for run in g.runs for z in run.relative()])) for g in groups]
    shown = [(g, z) for g, z in shown if z.size]
    if not shown:
        return None
    with rc_context(STYLE):
        figure, axes = single(HALF, 3.5)
        fewest = min(z.size for _, z in shown)
        edges = np.linspace(-Z_RANGE, Z_RANGE, 51 if fewest >= 1000 else 21)
        bins = edges.tolist()
        for group, z in shown:
            # Weights, not density=True: what lies outside the range still counts.
            weights = np.full(z.size, 1 / (z.size * (edges[1] - edges[0])))
            numbers = f"mean {z.mean():.2f}, sd {z.std():.2f}".replace("-", "\u2212")
            label = f"{drawn(group.label)}: {numbers}"
            outside = float(np.mean(np.abs(z) > Z_RANGE))
            if outside:
                label += f", {100 * outside:.2g} % beyond ±{Z_RANGE:g}"
            look = {"weights": weights, "color": group.color}
            axes.hist(z, bins, histtype="stepfilled", alpha=0.45, label=label, **look)
            axes.hist(z, bins, histtype="step", linewidth=1.2, **look)
            cuts = [b.threshold for run in group.runs for b in run.batches[-WINDOW:]]
            cuts = [cut for cut in cuts if cut is not None and abs(cut) < Z_RANGE]
            if cuts:
                axes.axvline(np.median(cuts), color=group.color, linewidth=1.2, linestyle=":")
        x = np.linspace(-Z_RANGE, Z_RANGE, 201)
        normal = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        axes.plot(x, normal, color=INK, linewidth=1.4, label="N(0, 1)")
        axes.set_xlim(-Z_RANGE, Z_RANGE)
        axes.set_xlabel("z, relative informativeness")
        axes.set_ylabel("density")
        axes.legend(loc="upper left", fontsize=8)
        axes.margins(y=0.3)
        return figure


def realised_ratio(groups: Sequence[Group]) -> Figure | None:
    """Selected over candidates so far (bold) and over the last batches (thin), with the target."""
    shown = [g for g in _partial(groups) if any(run.batches for run in g.runs)]
    if not shown:
        return None
    with rc_context(STYLE):
        figure, axes = single(HALF, 3.5)
        top = 0.0
        for group in shown:
            for k, run in enumerate(group.runs):
                if not run.batches:
                    continue
                selected = np.cumsum([batch.num_selected for batch in run.batches])
                seen = np.maximum(np.cumsum([b.num_candidates for b in run.batches]), 1)
                so_far = selected / seen
                label = drawn(group.label) if k == 0 else None
                look = {"color": group.color, "linestyle": group.linestyle}
                axes.plot(np.arange(1, len(seen) + 1), so_far, label=label, **look)
                top = max(top, so_far[len(so_far) // 10 :].max())
                if len(seen) > WINDOW:
                    recent = (selected[WINDOW:] - selected[:-WINDOW]) / np.maximum(
                        seen[WINDOW:] - seen[:-WINDOW], 1
                    )
                    x = np.arange(WINDOW + 1, len(seen) + 1)
                    axes.plot(x, recent, color=group.color, linewidth=0.8, alpha=0.5)
                    top = max(top, recent.max())
        _targets(axes, shown)
        targets = [g.ratio for g in shown if g.ratio is not None]
        axes.set_ylim(0, min(1.05, max([1.15 * top, *(1.6 * target for target in targets)])))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("candidate batches")
        _percent_axis(axes)
        axes.set_ylabel("selected of candidates")
        legend(axes)
        return figure


def wall_clock(groups: Sequence[Group]) -> Figure | None:
    """Seconds of scoring, training and evaluation of every run."""
    rows = [pair for g in groups for pair in zip(g.names(), g.runs, strict=True)]
    if not any(run.seconds for _, run in rows):
        return None
    with rc_context(STYLE):
        figure, axes = single(HALF, max(0.34 * len(rows) + 1.1, 2.2))
        parts = [
            ("scoring", PURPLE, [run.score_seconds for _, run in rows]),
            ("training", GREEN, [run.train_seconds for _, run in rows]),
            ("evaluation", MUTED, [run.evaluation_seconds for _, run in rows]),
        ]
        y = np.arange(len(rows))
        left = np.zeros(len(rows))
        for name, color, seconds in parts:
            look = {"color": color, "edgecolor": SURFACE, "linewidth": 1.2}
            axes.barh(y, seconds, 0.62, left=left, label=name, **look)
            left += seconds
        for row, total in enumerate(left):
            axes.annotate(
                duration(total), (total, row), (5, 0), "data", "offset points", va="center"
            )
        axes.set_yticks(y, [name for name, _ in rows])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        axes.margins(x=0.14)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("seconds")
        handles = [Patch(color=color, label=name) for name, color, _ in parts]
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=3)
        return figure


def floor(runs: Sequence[Run], values: Sequence[float]) -> float:
    """Where an axis of accuracies over all tasks begins: at chance, where the records say how many
    answers there are and nothing is below it, else at zero.
    """
    known = [run.chance for run in runs]
    chance = min((one for one in known if one is not None), default=0.0)
    return chance if None not in known and min(values, default=0.0) >= chance else 0.0


def duration(seconds: float) -> str:
    """`4.2 s`, `42 s`, `3 min 05 s`, `2 h 07 min`; the spaces do not break."""
    minutes, rest = divmod(round(seconds), 60)
    if seconds < 9.95:
        text = f"{seconds:.1f} s"
    elif minutes < 1:
        text = f"{rest} s"
    elif minutes < 60:
        text = f"{minutes} min {rest:02d} s"
    else:
        text = f"{minutes // 60} h {minutes % 60:02d} min"
    return text.replace(" ", "\u00a0")


def _floor_of(groups: Sequence[Group]) -> float:
    runs = [run for group in groups for run in group.runs]
    return floor(runs, [value for run in runs for _, value in run.seen_accuracy()])


def single(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure, in inches, with one pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _curve(axes: Axes, group: Group, curves: list[list[tuple[int, float]]]) -> None:
    """Mean of the group's curves up to where the shortest ends; single runs faint beneath it."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return
    look = {"color": group.color, "linestyle": group.linestyle}
    if len(curves) > 1:
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), alpha=0.35, linewidth=0.9, **look)
    length = min(map(len, curves))
    x, y = np.mean([curve[:length] for curve in curves], axis=0).T
    edge = {"marker": group.marker, "markeredgecolor": SURFACE, "markeredgewidth": 0.8}
    axes.plot(x, y, label=drawn(group.label), **look, **edge)


def _partial(groups: Sequence[Group]) -> list[Group]:
    """Groups that leave something out; all of them where every run trains on everything."""
    partial = [group for group in groups if not group.runs[0].keeps_all]
    return partial or list(groups)


def _tasks(groups: Sequence[Group]) -> list[str]:
    """Task names of the longest list among the runs."""
    return max((run.tasks for group in groups for run in group.runs), key=len, default=[])


def _per_task(run: Run, tasks: Sequence[str]) -> list[tuple[int, int]]:
    """(selected, candidates) of each of `tasks`, in whatever order they came in the run."""
    counts = dict(zip(run.tasks, run.per_task(), strict=True))
    return [counts.get(task, (0, 0)) for task in tasks]


def _arrivals(groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
    """Candidates seen when a task begins and ends, from the run that got furthest."""
    runs = [run for group in groups for run in group.runs]
    furthest = max(runs, key=lambda run: len(run.evaluations))
    spans, begin = {}, 0
    for evaluation in furthest.evaluations:
        if 0 <= evaluation.after_task < len(furthest.tasks):
            spans[furthest.tasks[evaluation.after_task]] = (begin, evaluation.candidates)
        begin = evaluation.candidates
    return spans


def _targets(axes: Axes, groups: Sequence[Group]) -> None:
    for target in sorted({g.ratio for g in groups if g.ratio is not None and g.ratio < 1}):
        axes.axhline(target, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        text = f"target\n{100 * target:g} %"
        axes.annotate(text, (1, target), (4, 0), va="center", fontsize=7.5, color=INK, **place)


def _candidate_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("candidates seen")
    axes.set_xlim(left=0)


def _percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def legend(axes: Axes) -> None:
    """The names of the groups, over the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=5, columnspacing=1.2)
