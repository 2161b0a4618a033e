"""A process that runs cells, one after another, on a workspace that it keeps while it can."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

from oasis.lab.compare.imports import load_modules
from oasis.lab.compare.state import ERROR, FINISHED, note, state
from oasis.lab.config import RunConfig
from oasis.lab.metrics import loss_text
from oasis.lab.record.lock import Busy, locked
from oasis.lab.record.log import EVENTS, end_event
from oasis.lab.settings import Scope, names

DONE, FAILED, TAKEN = "done", "failed", "taken"
STOPPED = 128 + signal.SIGTERM  # exit status of a worker that was told to stop, as shells have it


class Stopped(BaseException):
    """The comparison was interrupted. Not an Exception, which a run's failure would be."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: `DONE`, `FAILED` or `TAKEN` (another process has it)."""

    status: str
    message: str = ""


class Runner:
    """Runs cells in this process."""

    def __init__(self) -> None:
        self._key: tuple | None = None
        self._workspace: Any = None

    def run(self, config: RunConfig) -> Outcome:
        """Run one cell unless it is finished or another process has it; a failure is recorded, not
        raised, so that the other runs of the grid go on.
        """
        try:
            with locked(config.directory):
                # Another comparison may have finished it since it was planned.
                if state(config) != FINISHED:
                    self._run(config)
                tidy(config.directory)
            return Outcome(DONE)
        except Busy:
            return Outcome(TAKEN)
        except Exception as error:  # whatever it is: hours of other runs must not end with this one
            note(config.directory, traceback.format_exc())
            self._key = self._workspace = None  # who knows what state it was left in
            return Outcome(FAILED, " ".join(f"{type(error).__name__}: {error}".split()))

    def _run(self, config: RunConfig) -> None:
        from oasis.lab.run import run

        (config.directory / ERROR).unlink(missing_ok=True)
        workspace = self._workspace_for(config)
        result = run(config.replace(resume=True), progress=False, workspace=workspace)
        if not result.finished:
            raise RuntimeError(f"the run ended after {result.steps} steps, before its stream did")

    def _workspace_for(self, config: RunConfig) -> Any:
        from oasis.lab.workspace import Workspace

        key = shared_key(config)
        if key != self._key:
            self._key = self._workspace = None  # frees the old one before the new one is loaded
            workspace = Workspace(config)
            for _ in workspace.warm():  # once per text: no run's own time
                pass
            self._workspace, self._key = workspace, key
        return self._workspace


def tidy(directory: Path) -> None:
    """Remove the checkpoints of a finished run: they are there to resume from, and large."""
    from oasis.lab.record.checkpoints import Checkpoints

    Checkpoints(directory).drop()


def shared_key(config: RunConfig) -> tuple:
    """What runs that can use one workspace have in common."""
    return tuple(repr(getattr(config, name)) for name in sorted(names(RunConfig, Scope.SHARED)))


def serve(pipe: connection.Connection, threads: int, imports: Sequence[str], log: str) -> None:
    """Main function of a worker process: get RunConfigs, answer with Outcomes, until None comes.

    `threads` for torch; what runs print goes to the file `log`. SIGTERM stops it between two
    steps, and so does the end of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    signal.signal(signal.SIGTERM, _stop)
    _watch_parent()
    try:
        with contextlib.suppress(EOFError, BrokenPipeError), _output_to(log):
            import torch

            from oasis.lab import screen

            screen.set_up()  # what it says goes to a file
            torch.set_num_threads(threads)
            load_modules(imports)
            runner = Runner()
            while (config := pipe.recv()) is not None:
                pipe.send(runner.run(config))
    except Stopped:
        sys.exit(STOPPED)


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break the tidying up
    raise Stopped


def _watch_parent() -> None:
    parent = parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
    """Standard output and error of this process, libraries included, go to a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(file.fileno(), number)
        yield


def summary(directory: Path) -> str:
    """One line about a finished run."""
    end = end_event(directory / EVENTS)
    if end is None:
        return ""
    known = (("A_last", end.get("a_last")), ("A_avg", end.get("a_avg")))
    parts = [f"{name} {100 * value:.1f} %" for name, value in known if value is not None]
    if (loss := end.get("loss")) is not None:
        parts.append(f"held-out {loss_text(loss)}")
    if candidates := end.get("candidates"):
        parts.append(f"{100 * end.get('selected', 0) / candidates:.2f} % selected")
    return ", ".join([*parts, f"{end['seconds']:.0f} s"])
