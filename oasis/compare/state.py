"""What is on disk of a cell: nothing, a part, the whole run, or a run with other settings."""

from __future__ import annotations

import json
from pathlib import Path

from oasis.train import strict_yaml
from oasis.train.config import RunConfig, difference
from oasis.train.run import CONFIG, EVENTS

NEW, PARTIAL, FINISHED = "new", "partial", "finished"
ERROR = "error.txt"


def state(config: RunConfig) -> str:
    """`NEW`, `PARTIAL` or `FINISHED`, for a run of these settings or none."""
    if not (config.directory / EVENTS).exists():
        return NEW
    return FINISHED if end_event(config.directory) is not None else PARTIAL


def changed(config: RunConfig) -> str | None:
    """The first setting in which the run on disk differs, with both values, or None."""
    path = config.directory / CONFIG
    if not path.exists():
        return None
    try:
        saved = strict_yaml.read(path)
    except ValueError:
        return f"{path} cannot be read"
    if not isinstance(saved, dict):
        return f"{path} holds no settings"
    if found := difference(config, saved):
        name, value, before = found
        return f"{name} is {value!r}, was {before!r}"
    return None


def end_event(directory: Path) -> dict | None:
    """The run's end event, the last line of its record; None where it has not finished."""
    try:
        with (directory / EVENTS).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - (1 << 16), 0))
            lines = file.read().splitlines()
        event = json.loads(lines[-1])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    return event if event.get("type") == "end" else None
