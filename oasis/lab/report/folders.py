"""Which runs a report is of: folders found, each read once, and named apart."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from oasis.lab import strict_yaml
from oasis.lab.record.log import CONFIG, EVENTS
from oasis.lab.report.runs import Run

logger = logging.getLogger(__name__)

GRID = "compare.yaml"  # of a comparison, beside the folder of its runs


def find(paths: Iterable[str | Path] | str | Path) -> list[Path]:
    """Expand `paths` to run directories: each is one itself, or a folder of them.

    Raises FileNotFoundError naming the first path that holds no run, ValueError for no paths.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    found: dict[Path, Path] = {}  # in order, each folder once however it is named
    for path in map(Path, paths):
        if (path / EVENTS).is_file():
            found.setdefault(path.resolve(), path)
            continue
        inside = sorted(events.parent for events in path.glob(f"*/{EVENTS}"))
        if not inside:
            state = "is empty of runs" if path.is_dir() else "does not exist"
            raise FileNotFoundError(
                f"{path} {state}; expected a run directory (with {EVENTS}) or a folder of them"
            )
        for folder in inside:
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("run_dirs is empty; expected at least one run directory")
    return list(found.values())


def _name_apart(runs: Sequence[Run]) -> None:
    """Name each run by as many parts of its path as tell it from the others."""
    parts = {id(run): run.path.resolve().parts for run in runs}
    for run in runs:
        others = [own for key, own in parts.items() if key != id(run)]
        mine = parts[id(run)]
        count = next(
            (n for n in range(1, len(mine)) if not any(o[-n:] == mine[-n:] for o in others)), 1
        )
        run.name = "/".join(mine[-count:])


def load_all(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in these directories. What cannot be read, of them or in them, is named in the log,
    and the others go on. ValueError where none can be read.
    """
    paths, runs = list(map(Path, paths)), []
    for path in paths:
        try:
            run = Run.load(path)
            _check_settings(path, run)
        except OSError as error:
            logger.warning("left out: %s: %s", error.filename or path, error.strerror or error)
            continue
        except ValueError as error:
            logger.warning("left out: %s", error)
            continue
        if run.unreadable:
            lines = f"{run.unreadable} line{'s' * (run.unreadable > 1)}"
            logger.warning("%s: %s cannot be read and left out", path / EVENTS, lines)
        runs.append(run)
    if paths and not runs:
        raise ValueError(f"runs: got {len(paths)}, but none of them can be read")
    _name_apart(runs)
    return runs


def _check_settings(path: Path, run: Run) -> None:
    """ValueError where config.yaml is damaged: what may such a run be compared with?"""
    if (path / CONFIG).is_file():
        found = strict_yaml.parse(run.config, str(path / CONFIG))
        if not isinstance(found, dict):
            raise ValueError(f"{path / CONFIG}: holds no settings")
