"""The whole grid: plan, workers side by side, progress, and the list of what failed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rich.console import Console

from oasis.lab.compare.config import Cell, Grid
from oasis.lab.compare.progress import Progress
from oasis.lab.compare.state import FINISHED, changed, damaged, discard, note, state
from oasis.lab.compare.worker import DONE, FAILED, STOPPED, TAKEN, Outcome, serve, shared_key, tidy
from oasis.lab.record.lock import Busy, locked
from oasis.lab.report.folders import GRID
from oasis.starting import Terminable

MOST_WORKERS = 8
GRACE = 20.0  # seconds that a worker gets to end its step after an interrupt
POLL = 1.0  # seconds between two looks at the records of running cells
RETRY = 5.0  # seconds between two tries at cells that another comparison runs


@dataclass
class Report:
    """What became of the cells: by now `finished`, and `failed` with one line each."""

    finished: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)


def plan(grid: Grid, only: Sequence[str] = ()) -> list[Cell]:
    """The cells to be run or finished already, in order; `only` keeps those of some labels.

    ValueError for an unknown label.
    """
    labels = [entry.label for entry in grid.policies]
    for label in only:
        if label not in labels:
            raise ValueError(f"only: got {label!r}, expected one of {', '.join(labels)}")
    return [cell for cell in grid.cells() if not only or cell.label in only]


def refuse_changed(cells: Sequence[Cell]) -> None:
    """ValueError where a run on disk has other settings than its cell."""
    differing = [(cell, what) for cell in cells if (what := changed(cell.config)) is not None]
    if differing:
        cell, what = differing[0]
        others = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise ValueError(
            f"{cell.directory} holds a run with other settings ({what}){others}: choose another "
            "`out`, or --overwrite replaces such runs"
        )


def compare(
    grid: Grid,
    *,
    workers: int | None = None,
    only: Sequence[str] = (),
    overwrite: bool = False,
    console: Console | None = None,
) -> Report:
    """Run every cell of the grid that is not finished.

    `workers` replaces the grid's. `only` names labels. `overwrite` replaces runs of other settings
    instead of refusing. Runs that fail are recorded in their folder (error.txt) and the others go
    on. KeyboardInterrupt, or SIGTERM, stops the workers first; call it again to go on.
    """
    grid.check()
    cells = plan(grid, only)
    if overwrite:
        for cell in cells:
            if changed(cell.config) is not None or damaged(cell.config) is not None:
                with contextlib.suppress(Busy), locked(cell.directory):
                    discard(cell.directory)
    refuse_changed(cells)
    grid.save(Path(grid.out) / GRID)
    report = Report()
    todo = []
    for cell in cells:
        if (what := damaged(cell.config)) is not None:
            report.failed.append((cell, f"{what}; --overwrite replaces the run"))
        elif state(cell.config) == FINISHED:
            report.finished.append(cell)
            if any(cell.directory.glob("checkpoint-*")):  # killed just before they were removed?
                with contextlib.suppress(Busy), locked(cell.directory):
                    tidy(cell.directory)
        else:
            todo.append(cell)
    console = console or Console()
    if todo:
        count = workers or number_of_workers(grid, todo)
        with Progress(cells, report.finished, console) as progress, Terminable():
            Pool(grid, todo, count, progress, report).run()
    return report


def number_of_workers(grid: Grid, cells: Sequence[Cell]) -> int:
    """How many runs go side by side."""
    if isinstance(grid.workers, int):
        return min(grid.workers, len(cells))
    return max(1, min(cores(), MOST_WORKERS, len(cells)) if _on_cpu(cells) else 1)


def _on_cpu(cells: Sequence[Cell]) -> bool:
    from oasis.lab.device import choose_device

    return all(choose_device(cell.config.device).type == "cpu" for cell in cells)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Worker:
    process: Any
    pipe: connection.Connection
    cell: Cell | None = None
    key: tuple | None = None  # of the workspace it has loaded


class Pool:
    """Hands cells to worker processes in their order, as far as workspaces allow."""

    def __init__(
        self, grid: Grid, cells: Sequence[Cell], workers: int, progress: Progress, report: Report
    ) -> None:
        self.grid, self.progress, self.report = grid, progress, report
        self.pending = list(cells)
        self.taken: list[Cell] = []  # run by another comparison at the moment
        self.retry_at = 0.0
        self.threads = max(1, cores() // workers)
        self.size = workers
        self.workers: list[Worker] = []
        self.started = 0

    def run(self) -> None:
        try:
            while self.pending or self.taken or any(w.cell for w in self.workers):
                self._give_out()
                self._collect()
                self.progress.update([w.cell for w in self.workers if w.cell], len(self.taken))
            for worker in self.workers:
                with contextlib.suppress(BrokenPipeError):
                    worker.pipe.send(None)
        except BaseException:
            for worker in self.workers:
                worker.process.terminate()
            raise
        finally:
            end = time.monotonic() + GRACE
            for worker in self.workers:
                worker.process.join(max(0.1, end - time.monotonic()))
                if worker.process.is_alive():
                    worker.process.kill()
                    worker.process.join()
                worker.pipe.close()

    def _give_out(self) -> None:
        if self.taken and time.monotonic() >= self.retry_at:
            self.pending += self.taken
            self.taken = []
        # One that died between two cells has nothing to answer for.
        self.workers = [w for w in self.workers if w.cell is not None or w.process.is_alive()]
        busy = sum(worker.cell is not None for worker in self.workers)
        while self.pending and busy < self.size:
            worker = next((w for w in self.workers if w.cell is None), None) or self._start()
            cell = self._next_for(worker)
            self.pending.remove(cell)
            worker.cell, worker.key = cell, shared_key(cell.config)
            with contextlib.suppress(BrokenPipeError):  # it died: `_collect` says so
                worker.pipe.send(cell.config)
            self.progress.started(cell)
            busy += 1

    def _next_for(self, worker: Worker) -> Cell:
        """The first cell, but of its seed rather one for which nothing need be loaded."""
        first = self.pending[0]
        for cell in self.pending:
            if cell.config.seed == first.config.seed and shared_key(cell.config) == worker.key:
                return cell
        return first

    def _start(self) -> Worker:
        self.started += 1
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        log = str(Path(self.grid.out) / "logs" / f"worker-{os.getpid()}-{self.started}.txt")
        arguments = (theirs, self.threads, self.grid.imports, log)
        process = context.Process(target=serve, args=arguments, daemon=True)
        with _threads(self.threads):
            process.start()
        theirs.close()
        worker = Worker(process, ours)
        self.workers.append(worker)
        return worker

    def _collect(self) -> None:
        busy = [worker for worker in self.workers if worker.cell is not None]
        if not busy:
            time.sleep(min(POLL, max(0.0, self.retry_at - time.monotonic())))
            return
        ready = connection.wait([worker.pipe for worker in busy], POLL)
        for worker in busy:
            cell = worker.cell
            if worker.pipe not in ready or cell is None:
                continue
            worker.cell = None
            try:
                outcome = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.process.join()
                self.workers.remove(worker)
                outcome = Outcome(FAILED, self._death(worker.process.exitcode))
                note(cell.directory, outcome.message + "\n")
            self._account(cell, outcome)

    def _death(self, status: int) -> str:
        """What is known of a worker process that ended in the middle of a run."""
        if status == STOPPED:
            return "its process was told to stop (SIGTERM)"
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"its process {how}; see {Path(self.grid.out) / 'logs'}"

    def _account(self, cell: Cell, outcome: Outcome) -> None:
        if outcome.status == TAKEN:
            self.taken.append(cell)
            self.retry_at = time.monotonic() + RETRY
        elif outcome.status == DONE:
            self.report.finished.append(cell)
            self.progress.finished(cell)
        else:
            self.report.failed.append((cell, outcome.message))
            self.progress.failed(cell, outcome.message)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started inside use `count` threads in every library."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)), TOKENIZERS_PARALLELISM="false")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
