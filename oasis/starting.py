"""How the command `oasis` is stopped: Ctrl-C while it is being loaded, SIGTERM once it runs.

Loading takes seconds, and a KeyboardInterrupt would come out of whatever module is being imported,
or be lost in it: until the command begins Ctrl-C is one line, no traceback. This module is imported
before all others, so it does without those that Python has not loaded itself.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # what type checkers take for true; `typing` takes time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def is_command() -> bool:
    """Whether this process is the command line, and no worker of it.

    While `python -m` looks for its module, `sys.argv[0]` is "-m".
    """
    started_as = os.path.basename(sys.argv[0]) if sys.argv else ""
    named = started_as == "-m" or os.path.splitext(started_as)[0] == "oasis"
    return named and "--multiprocessing-fork" not in sys.orig_argv


class Interruptible:
    """Until `begun`, or the end of the block, Ctrl-C ends the process of a command with status 130.

    Whoever has set a handler of their own, or ignores Ctrl-C (`nohup`), keeps it.
    """

    def __init__(self, command: bool) -> None:
        self.command = command

    def __enter__(self) -> None:
        if self.command and _is(signal.default_int_handler):
            _set(signal.SIGINT, _end)

    def __exit__(self, *raised: object) -> None:
        begun()


def begun() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, for the command to say what is kept."""
    if _is(_end):
        _set(signal.SIGINT, signal.default_int_handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what runs as Ctrl-C does: what was begun is put in order, and temporary
    files go.
    """


class Terminable:
    """Inside, SIGTERM is raised as `Terminated`, unless somebody has set a handler of their own."""

    def __enter__(self) -> None:
        self.set = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self.set:
            _set(signal.SIGTERM, _terminate)

    def __exit__(self, *raised: object) -> None:
        if self.set:
            _set(signal.SIGTERM, signal.SIG_DFL)


def status(stop: KeyboardInterrupt) -> int:
    """What shells say of a process that was stopped so."""
    return 143 if isinstance(stop, Terminated) else 130


def _is(handler: object) -> bool:
    return signal.getsignal(signal.SIGINT) is handler


def _set(number: int, handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    try:  # noqa: SIM105 (contextlib is not loaded yet)
        signal.signal(number, handler)
    except ValueError:  # not in the main thread, which signals do not reach
        pass


def _end(number: int, frame: object) -> None:
    os.write(2, b"\nerror: interrupted\n")
    os._exit(130)


def _terminate(number: int, frame: object) -> None:
    _set(signal.SIGTERM, signal.SIG_IGN)  # a second one would break the tidying up
    raise Terminated
