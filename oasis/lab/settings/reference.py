"""The reference of all settings, from the models: a text for the terminal, a page for docs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from oasis.lab.settings.errors import takes
from oasis.lab.settings.model import Scope, Settings, in_grid, names

WIDTH = 88
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Line:
    """One setting: its name, its default as YAML has it, what it takes and what it is."""

    name: str
    default: str
    takes: str
    help: str


def sections(model: type[Settings]) -> Iterator[tuple[str, list[Line]]]:
    """(title, settings) of each part that a model is put together from, or of the model itself."""
    for part in reversed(model.__mro__):
        if issubclass(part, Settings):
            title = (part.__doc__ or "").splitlines()[0].rstrip(".")
            own = [name for name in model.model_fields if name in inspect.get_annotations(part)]
            if own:
                yield title, [_line(model, name) for name in own]


def _line(model: type[Settings], name: str) -> Line:
    field = model.model_fields[name]
    default = field.get_default()
    if isinstance(default, Settings):
        default = default.model_dump()
    said = "required" if field.is_required() else yaml.safe_dump(default, default_flow_style=True)
    notes = []
    if name in names(model, Scope.FREE):
        notes.append("A resumed run may change it.")
    if name in in_grid(model):
        notes.append(f"Not in a grid's `run`: {in_grid(model)[name]}.")
    text = " ".join([field.description or "", *notes])
    return Line(name, said.removesuffix("...\n").strip(), takes(field), text)


def text(model: type[Settings]) -> str:
    """For the terminal."""
    blocks = []
    for title, lines in sections(model):
        blocks.append(title)
        for line in lines:
            more = LINK.sub(r"\1", f"{line.help} Takes {line.takes}.")
            body = textwrap.fill(more, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
            blocks.append(f"  {line.name}: {line.default}\n{body}")
    return "\n\n".join(blocks)


def commented(model: type[Settings]) -> str:
    """A YAML file of all settings, each behind a comment of what it is. But for the first they are
    comments too, with their defaults: some defaults depend on what else is set.
    """
    blocks = []
    for title, lines in sections(model):
        blocks.append(f"# {title}")
        for line in lines:
            more = LINK.sub(r"\1", f"{line.help} Takes {line.takes}.")
            body = textwrap.fill(more, WIDTH, initial_indent="# ", subsequent_indent="# ")
            mark = "# " if len(blocks) > 1 else ""
            blocks.append(f"{body}\n{mark}{line.name}: {line.default}")
    return "\n\n".join(blocks) + "\n"


def tables(model: type[Settings]) -> str:
    """For the page."""
    blocks = []
    for title, lines in sections(model):
        rows = ["| setting | default | takes | what it is |", "|---|---|---|---|"]
        for line in lines:
            cells = (f"`{line.name}`", f"`{line.default}`", line.takes, line.help)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        blocks.append("\n".join([f"### {title}", "", *rows]))
    return "\n\n".join(blocks)
