"""Curves of a training, by step or batch (its loss, its threshold), and the mean of curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oasis.lab.report.figures import HALF, STYLE, WINDOW, legend, single
from oasis.lab.report.groups import Group, drawn
from oasis.lab.report.runs import Run

Curve = tuple[np.ndarray, np.ndarray]


def loss(groups: Sequence[Group]) -> Figure | None:
    """Training loss, mean over the last steps that trained."""
    figure = _curves(groups, _loss, "optimizer steps", "loss, nats per label token")
    if figure is not None:
        figure.axes[0].set_ylim(bottom=0)
    return figure


def threshold(groups: Sequence[Group]) -> Figure | None:
    """The threshold that z is held against, batch by batch."""
    return _curves(groups, _threshold, "candidate batches", "threshold on z")


def _loss(run: Run) -> Curve | None:
    if not run.losses:
        return None
    steps, values = (np.array(list(part)) for part in zip(*sorted(run.losses.items()), strict=True))
    width = min(WINDOW, len(values))
    sums = np.cumsum([0.0, *values])
    return steps[width - 1 :], (sums[width:] - sums[:-width]) / width


def _threshold(run: Run) -> Curve | None:
    known = [(b.index + 1, b.threshold) for b in run.batches if b.threshold is not None]
    if not known:
        return None
    x, y = zip(*known, strict=True)
    return np.array(x), np.array(y)


def _curves(
    groups: Sequence[Group], of: Callable[[Run], Curve | None], x: str, y: str
) -> Figure | None:
    found = [(g, [curve for run in g.runs if (curve := of(run))]) for g in groups]
    if not any(curves for _, curves in found):
        return None
    with rc_context(STYLE):
        figure, axes = single(HALF, 3.5)
        for group, curves in found:
            for k, curve in enumerate(curves):
                label = drawn(group.label) if k == 0 else None
                look = {"color": group.color, "linestyle": group.linestyle, "linewidth": 1.3}
                axes.plot(*curve, label=label, **look)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        legend(axes)
        return figure


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> np.ndarray:
    """Point-wise mean [points, 2] of the curves up to where the shortest ends."""
    curves = [curve for curve in curves if curve]
    if not curves:
        return np.empty((0, 2))
    length = min(map(len, curves))
    return np.mean([curve[:length] for curve in curves], axis=0)
