"""One process at a time in a run directory."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

PRIVATE = ".oasis"  # in a run directory, what the run keeps to itself: its lock, its scratch space


class Busy(OSError):
    """Another run is going on in the folder."""


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a run directory, which is made where it is missing.

    The system takes it back when the process ends, however that ends. A thread that holds it may
    take it again.

    Raises:
        Busy: another process or thread holds it.
    """
    folder = directory / PRIVATE
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise Busy(
            errno.EBUSY, "another run is going on there; wait for its end or use another name",
            str(directory),
        ) from None  # fmt: skip
    try:
        yield
    finally:
        lock.release()


def refuse_busy(directory: Path) -> None:
    """Raise Busy where another process runs in the directory; makes none."""
    if (directory / PRIVATE).is_dir():
        with locked(directory):
            pass
