"""What is on disk of a cell: nothing, a part, the whole run, or a run with other settings."""

from __future__ import annotations

import contextlib
from pathlib import Path

from oasis.lab.config import RunConfig, difference
from oasis.lab.record.checkpoints import erase
from oasis.lab.record.log import CONFIG, EVENTS, end_event
from oasis.lab.run import saved_settings
from oasis.train import atomic

NEW, PARTIAL, FINISHED = "new", "partial", "finished"
ERROR = "error.txt"


def state(config: RunConfig) -> str:
    """`NEW`, `PARTIAL` or `FINISHED`, for a run of these settings or none."""
    if not (config.directory / EVENTS).exists():
        return NEW
    return FINISHED if end_event(config.directory / EVENTS) is not None else PARTIAL


def damaged(config: RunConfig) -> str | None:
    """Which file of the run on disk cannot be read, and why; or None."""
    path = config.directory / CONFIG
    # A run that is killed as it begins has a record without settings.
    if not path.exists() and state(config) != FINISHED:
        return None
    try:
        saved_settings(config.directory)
    except ValueError as error:
        return str(error)
    return None


def changed(config: RunConfig) -> str | None:
    """The first setting in which the run on disk differs, with both values, or None."""
    if not (config.directory / CONFIG).exists() or damaged(config) is not None:
        return None
    if found := difference(config, saved_settings(config.directory)):
        name, value, before = found
        return f"{name} is {value!r}, was {before!r}"
    return None


def discard(directory: Path) -> None:
    """Remove what a run wrote. Its lock must be held."""
    erase(directory)
    for name in (CONFIG, EVENTS, ERROR):  # in this order: settings without a record are no run's
        (directory / name).unlink(missing_ok=True)


def note(directory: Path, text: str) -> None:
    """Leave word of why a run failed, where the disk lets us."""
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        atomic.write(directory / ERROR, text)
