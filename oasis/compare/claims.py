"""Who runs a cell: a claim file with a process in it, taken and given back under a lock.

Two `oasis compare` on one folder share its cells that way. A claim whose process is gone counts for
nothing, so that a killed comparison can be gone on with at once. Of a process on another machine
(or in another container) nothing is known but that it renews its claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

RENEWED = 30.0  # seconds between two renewals of a claim
STALE = 600.0  # seconds after which one from another machine counts for nothing


class Claims:
    """Claims in `folder` (made where it is missing), one file each."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str) -> bool:
        """Claim `name` for this process; False where another living process has it."""
        with self._locked():
            if self._held_by_another(name):
                return False
            temporary = self.folder / f".{name}.{os.getpid()}"
            temporary.write_text(json.dumps(_me()), encoding="utf-8")
            temporary.replace(self._path(name))
            return True

    @contextlib.contextmanager
    def renewed(self, name: str) -> Iterator[None]:
        """While open, this process's claim is renewed."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(RENEWED):
                with contextlib.suppress(OSError):
                    os.utime(self._path(name))

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def give_back(self, name: str) -> None:
        """Drop this process's claim; another's is left alone."""
        with self._locked():
            if self._read(name) == _me():
                self._path(name).unlink(missing_ok=True)

    def taken(self, name: str) -> bool:
        """Whether another living process has `name`."""
        with self._locked():
            return self._held_by_another(name)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read(self, name: str) -> dict | None:
        try:
            return json.loads(self._path(name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def _held_by_another(self, name: str) -> bool:
        owner = self._read(name)
        if owner is None or owner == _me():
            return False
        if owner["host"] != socket.gethostname():
            return time.time() - self._path(name).stat().st_mtime < STALE
        return _started(owner["pid"]) == owner["started"]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock makes "is the owner alive?" and "then it is mine" one step. The system drops it
        # with the process, whatever becomes of that.
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _me() -> dict:
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "started": _started(pid)}


def _started(pid: int) -> str | None:
    """When a living process began (a number that its successor of the same pid does not share),
    "unknown" where the system does not say, None where it lives no more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "unknown"
    return None if fields[0] == "Z" else fields[19]
