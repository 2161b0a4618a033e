"""Turn the stand-in colours of a figure, which a page makes CSS variables of, into real ones."""

from __future__ import annotations

from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from oasis.lab.report import figures, groups

LIGHT = {
    groups.INK: "#1b2024",
    groups.MUTED: "#5c656d",
    groups.FADED: "#99a1a7",
    figures.GRID: "#e3e6e4",
    figures.SURFACE: "#ffffff",
}


def recolour(figure: Figure) -> None:
    """Give `figure` the colours of the light page, in place."""
    figure.draw_without_rendering()  # ticks exist from then on
    for artist in figure.findobj():
        if isinstance(artist, Line2D):
            artist.set_color(_real(artist.get_color()))
            artist.set_markeredgecolor(_real(artist.get_markeredgecolor()))
            artist.set_markerfacecolor(_real(artist.get_markerfacecolor()))
        elif isinstance(artist, Text):
            artist.set_color(_real(artist.get_color()))
        elif isinstance(artist, Patch):
            artist.set_edgecolor(_real(artist.get_edgecolor()))
            artist.set_facecolor(_real(artist.get_facecolor()))
        elif isinstance(artist, Collection):
            artist.set_edgecolor([_real(color) for color in artist.get_edgecolor()])
            artist.set_facecolor([_real(color) for color in artist.get_facecolor()])


def _real(color):
    if isinstance(color, str) and color in ("none", "auto"):
        return color
    red, green, blue, alpha = to_rgba(color)
    return to_rgba(LIGHT.get(to_hex((red, green, blue)), (red, green, blue)), alpha)
