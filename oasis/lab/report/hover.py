"""What the curves of a figure say, for the pointer and for those who cannot see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

MOST = 200  # points of a curve
JOINER = "\N{WORD JOINER}"  # before labels that matplotlib would leave out


def panels(figure: Figure, colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of each axes with named curves: its `box` in the SVG's units (left, top, right, bottom), the
    numbers at those edges (`x`, `y`, low and high), whether they are percents, and its `curves`
    (name, CSS variable of its colour, points). The figure must have been drawn.

    Args:
        colours: CSS variables by the colour of the figure.
    """
    width, height = figure.get_size_inches() * 72
    found = []
    for axes in figure.axes:
        curves = _curves(axes, colours)
        if not curves or not axes.get_visible():
            continue
        place = axes.get_position()
        box = (place.x0 * width, (1 - place.y1) * height, place.x1 * width, (1 - place.y0) * height)
        found.append(
            {
                "box": [round(float(edge), 1) for edge in box],
                "x": [float(edge) for edge in axes.get_xlim()],
                "y": [float(edge) for edge in axes.get_ylim()],
                "percent": [_is_percent(axes.xaxis), _is_percent(axes.yaxis)],
                "name": axes.get_xlabel(),
                "curves": curves,
            }
        )
    return found


def _curves(axes: Axes, colours: Mapping[str, str]) -> list[dict[str, Any]]:
    named = [(line.get_label(), line) for line in axes.lines]
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer) and container.lines[0] is not None:
            named.append((container.get_label(), container.lines[0]))
    curves = []
    for label, line in named:
        text, points = str(label), np.asarray(line.get_xydata())
        points = points[np.isfinite(points).all(axis=1)]
        if text.startswith("_") or not text or not len(points):
            continue
        every = -(-len(points) // MOST)
        curves.append(
            {
                "name": text.removeprefix(JOINER),
                "color": colours.get(to_hex(line.get_color()), "ink"),
                "points": [
                    [float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in points[::-every][::-1]
                ],
            }
        )
    return curves


def _is_percent(axis: Axis) -> bool:
    return axis.get_major_formatter()(0.5, 0).rstrip().endswith("%")


def ends(found: list[dict[str, Any]]) -> str:
    """Where each curve ends, in words: "oasis ends at 76.6 %"; "" where there are none."""
    ends = dict.fromkeys(
        f"{curve['name']} ends at {_number(curve['points'][-1][1], panel['percent'][1])}"
        for panel in found
        for curve in panel["curves"]
    )
    return "; ".join(ends)


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.4g}"


def as_json(found: list[dict[str, Any]]) -> str:
    """Compact, and harmless inside a page's script element."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
