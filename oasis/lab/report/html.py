"""The report: one HTML file with its figures inside, nothing fetched, light and dark."""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

from oasis.lab.report import curves, figures, groups, hover, samples
from oasis.lab.report.groups import Group
from oasis.lab.report.runs import Run

# Colours of the figures as CSS variables of style.css, which gives them a dark variant.
VARIABLES = {
    groups.INK: "ink",
    groups.MUTED: "muted",
    groups.FADED: "faded",
    figures.GRID: "grid",
    figures.SURFACE: "card",
    groups.BLUE: "blue",
    groups.ORANGE: "orange",
    groups.GREEN: "green",
    groups.VERMILLION: "vermillion",
    groups.PURPLE: "purple",
    groups.SKY: "sky",
    groups.YELLOW: "yellow",
}

# (function, title, what it shows, what is missing if it shows nothing, whole page wide?)
FIGURES: tuple[tuple[Callable, str, str, str, bool], ...] = (
    (
        figures.accuracy,
        "Accuracy over time",
        "Held-out accuracy, averaged over the tasks seen so far, at each task boundary.",
        "No task boundary has been evaluated yet.",
        False,
    ),
    (
        figures.selected_per_task,
        "Selected per task",
        "Share of each task's candidates that was trained on; over the bar, how many.",
        "No batch has been selected yet.",
        False,
    ),
    (
        figures.task_accuracy,
        "Accuracy of each task",
        "The shaded band is the stretch of the stream in which the task's own samples arrive; "
        "a fall after it is forgetting.",
        "No task has been evaluated yet.",
        True,
    ),
    (
        figures.relative,
        "Relative informativeness",
        "z of every candidate, beside the N(0, 1) that the threshold assumes. The dotted line is "
        "the latest threshold, where P is 1/2.",
        "None of these policies scores relative informativeness.",
        False,
    ),
    (
        figures.realised_ratio,
        "Realised ratio",
        "Selected of all candidates so far (bold) and of the last "
        f"{figures.WINDOW} batches (thin). Policies that keep everything are left out.",
        "No batch has been selected yet.",
        False,
    ),
    (
        curves.loss,
        "Training loss",
        f"Of the samples trained on, mean over {figures.WINDOW} optimizer steps that had some.",
        "No step has trained yet.",
        False,
    ),
    (
        curves.threshold,
        "Threshold",
        "What z is held against, batch by batch: it moves so that the ratio holds.",
        "None of these policies has a threshold.",
        False,
    ),
    (
        figures.wall_clock,
        "Where the time went",
        "Scoring is the forward pass over all candidates plus the selection itself; training is "
        "forward, backward and optimiser on what was kept.",
        "No time has been measured yet.",
        False,
    ),
)


def render(runs: Sequence[Run]) -> str:
    """The page as a string."""
    grouped = groups.group(runs)
    shown = samples.samples(runs)
    cards = []
    for k, (draw, title, caption, missing, wide) in enumerate(FIGURES):
        cards.append(card(draw(grouped), f"f{k}-", title, caption, missing, wide=wide))
    return load_template("runs.html.j2").render(
        facts=facts(runs),
        tiles=[tile(group) for group in grouped],
        rows=[row for group in grouped for row in rows(group)],
        note=standard_error_note(runs),
        figures=cards,
        losses=samples.losses(runs),
        samples=shown,
        columns={name: name for name in samples.columns(shown)},
        runs=runs,
    )


def load_template(name: str, **filters: Callable) -> Template:
    """A template of this package; it finds style sheet and script as `style` and `script`, and
    further `filters`.
    """
    here = resources.files("oasis.lab.report")

    def read(name: str) -> str:
        return here.joinpath(name).read_text("utf-8")

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(read),
    )
    environment.filters |= {"percent": percent, "count": count, "duration": figures.duration}
    environment.filters |= filters
    environment.globals["style"] = Markup(read("style.css"))
    environment.globals["script"] = Markup(read("page.js"))
    return environment.get_template(name)


def card(
    figure: Figure | None, prefix: str, title: str, caption: str, missing: str = "", *, wide: bool
) -> dict[str, Any]:
    """What the templates' `figure` shows: a figure with its title, what is said of it (or that it
    is `missing`), and what its curves say under the pointer.
    """
    if figure is None:
        return {"title": title, "caption": missing, "svg": None, "hover": None, "wide": wide}
    svg = to_svg(figure)
    panels = hover.panels(figure, VARIABLES)  # it has been drawn
    about = ". ".join(
        part for part in (f"{title}: {caption}".rstrip("."), hover.ends(panels)) if part
    )
    return {
        "title": title,
        "caption": caption,
        "svg": inline_svg(svg, prefix, about),
        "hover": Markup(hover.as_json(panels)) if panels else None,
        "wide": wide,
    }


def to_svg(figure: Figure) -> str:
    """A figure as matplotlib writes it."""
    buffer = io.StringIO()
    with rc_context(figures.STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline_svg(svg: str, prefix: str, label: str) -> Markup:
    """A written figure as an `<svg>` element: own id namespace, CSS variables for colours, a
    `label` for those who cannot see it.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}")
    for color, name in VARIABLES.items():
        svg = svg.replace(color, f"var(--{name})")
    # The view box keeps the proportions; the page decides the width.
    svg = re.sub(r'<svg ([^>]*?)\bheight="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", svg, count=1)
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the runs have in common, for the head of the page."""

    def distinct(values: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))

    named = (
        ("model", distinct(run.model for run in runs)),
        ("tasks", distinct(" → ".join(run.tasks) for run in runs)),
        ("device", distinct(run.device for run in runs)),
        ("seed", distinct(run.seed for run in runs)),
    )
    return [(name, value) for name, value in named if value]


def tile(group: Group) -> dict:
    """One policy in large type: mean over its runs."""
    return {
        "label": group.label,
        "color": VARIABLES[group.color],
        "a_last": _mean(run.a_last for run in group.runs),
        "a_avg": _mean(run.a_avg for run in group.runs),
        "ratio": _mean(run.realised_ratio for run in group.runs),
        "seconds": _mean(run.seconds for run in group.runs),
        "selected": _mean(run.selected for run in group.runs),
        "loss": _mean(loss.last for loss in samples.losses(group.runs)),
        "finished": group.finished,
    }


def rows(group: Group) -> list[dict]:
    """Rows of the summary table: each run, then the mean of the runs where there are several."""
    columns = ("realised_ratio", "selected", "candidates", "a_last", "a_avg", "seconds")
    columns += ("scoring_share", "skipped")
    common = {"color": VARIABLES[group.color], "target": 1.0 if group.runs[0].keeps_all else None}
    if common["target"] is None:
        common["target"] = group.ratio
    table = []
    for name, run in zip(group.names(), group.runs, strict=True):
        values = {column: getattr(run, column) for column in columns}
        values |= {"name": name, "finished": run.finished, "unreadable": run.unreadable}
        table.append(common | values | {"error": run.standard_error, "mean": False})
    if len(group.runs) > 1:
        values = {column: _mean(row[column] for row in table) for column in columns}
        last = [run.a_last for run in group.runs if run.a_last is not None]
        spread = statistics.stdev(last) / len(last) ** 0.5 if len(last) > 1 else None
        values |= {"name": f"{group.label} · mean of {len(group.runs)}", "error": spread}
        values |= {"finished": group.finished, "unreadable": 0, "mean": True}
        table.append(common | values)
    return table


def standard_error_note(runs: Sequence[Run]) -> str:
    sizes = [size for run in runs for size in run.held_out.values()]
    if not sizes:
        return ""
    span = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return (
        f"± is one standard error of A_last. For a single run it comes from its {span} held-out "
        "items a task alone: seeds and the order of the stream add to it. For a mean it is the "
        "spread of the runs. Differences below about two standard errors say nothing."
    )


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}\u00a0%"


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
