"""Progress over a whole grid: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console

from oasis.lab.compare.config import Cell
from oasis.lab.compare.state import ERROR
from oasis.lab.compare.worker import summary
from oasis.lab.record.events import parse
from oasis.lab.record.log import EVENTS
from oasis.lab.report.figures import duration

STEP = b'"type": "step"'


class Tail:
    """Steps done of a run that another process writes the record of."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / EVENTS
        self.read = 0
        self.steps = 0
        self.total: int | None = None
        self.first: int | None = None  # steps when it was first looked at

    def update(self) -> None:
        """Read what has been written since the last call."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.read:  # the run started anew, or from a checkpoint
                    self.read, self.steps, self.first = 0, 0, None
                file.seek(self.read)
                text = file.read()
        except OSError:
            return  # not there yet, or the run's own affair
        whole = text[: text.rfind(b"\n") + 1]
        if self.total is None and whole:
            with contextlib.suppress(ValueError, IndexError):  # damaged
                first = parse(whole.splitlines()[0])
                if first is not None and first["type"] == "start":
                    self.total = first["boundaries"][-1]
        self.read += len(whole)
        self.steps += whole.count(STEP)
        if self.first is None:
            self.first = self.steps


class Progress:
    """A context; the pool reports to it.

    Args:
        cells: All cells of the comparison.
        finished: Those of them that were finished before.
        console: Where to print.
    """

    def __init__(self, cells: Sequence[Cell], finished: Sequence[Cell], console: Console) -> None:
        self.cells, self.console = cells, console
        self.done, self.lost, self.before = len(finished), 0, len(finished)
        self.tails: dict[str, Tail] = {}
        self.since = time.monotonic()
        self.live: bars.Progress | None = None
        self.lines: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        where = f"{len(self.cells)} runs, {self.done} of them finished before"
        self.console.print(where, highlight=False)
        if self.console.is_terminal:
            columns = (bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=24))
            more = (bars.TextColumn("{task.fields[note]}"),)
            self.live = bars.Progress(*columns, *more, console=self.console)
            self.live.start()
            self.overall = self.live.add_task("all runs", total=len(self.cells), note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, cell: Cell) -> None:
        self.tails[cell.name] = Tail(cell.directory)
        if self.live is not None:
            self.lines[cell.name] = self.live.add_task(f"  {cell.name}", total=None, note="loading")

    def finished(self, cell: Cell) -> None:
        self.done += 1
        self._end(cell)
        self._say(cell, summary(cell.directory))

    def failed(self, cell: Cell, message: str) -> None:
        self.lost += 1
        self._end(cell)
        self._say(cell, f"failed: {message} ({cell.directory / ERROR})")

    def update(self, running: Sequence[Cell], elsewhere: int) -> None:
        """Look at the records of the `running` cells; `elsewhere` are run by other processes."""
        names = {cell.name for cell in running}
        for name in [name for name in self.tails if name not in names]:
            self.tails.pop(name)  # another comparison had it
            self._remove_line(name)
        for name, tail in self.tails.items():
            tail.update()
            if self.live is not None and tail.total:
                note = f"{tail.steps}/{tail.total} steps"
                line = self.lines[name]
                self.live.update(line, completed=tail.steps, total=tail.total, note=note)
        if self.live is not None:
            note = f"{self.done}/{len(self.cells)} runs"
            if self.lost:
                note += f", {self.lost} failed"
            if elsewhere:
                note += f", {elsewhere} run elsewhere"
            left = self.left()
            note += f", about {duration(left)} left" if left is not None else ""
            done = self.done + self.lost + self._parts(new=False)
            self.live.update(self.overall, completed=done, note=note)

    def left(self) -> float | None:
        """Seconds to the end at the pace so far; None while there is nothing to go by."""
        pace = (self.done - self.before + self._parts(new=True)) / max(
            time.monotonic() - self.since, 1e-9
        )
        rest = len(self.cells) - self.done - self.lost - self._parts(new=False)
        return rest / pace if pace > 0 and rest > 0 else None

    def _parts(self, *, new: bool) -> float:
        """Runs' worth of steps done in the running cells, `new` ones only or all."""
        return sum(
            (tail.steps - (tail.first or 0) * new) / tail.total
            for tail in self.tails.values()
            if tail.total
        )

    def _end(self, cell: Cell) -> None:
        self.tails.pop(cell.name, None)
        self._remove_line(cell.name)

    def _remove_line(self, name: str) -> None:
        if self.live is not None and name in self.lines:
            self.live.remove_task(self.lines.pop(name))

    def _say(self, cell: Cell, text: str) -> None:
        line = f"[{self.done + self.lost}/{len(self.cells)}] {cell.name}: {text}"
        left = self.left()
        if left is not None and self.live is None:
            line += f"; about {duration(left)} left"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
