"""The record of a run: `events.jsonl`, one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oasis.train.atomic import naming

EVENTS = "events.jsonl"


class EventLog:
    """Appends events to a file; each is with the system as soon as it is written.

    Not-a-number and infinities, which JSON does not have, become null.

    Args:
        path (Path): The file.
        offset (int): Bytes of an earlier record to keep, default 0; what follows them is cut off,
            so that a resumed run does not repeat the steps between its checkpoint and its end.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._file = path.open("r+b" if offset else "wb")
        self._file.truncate(offset)
        self._digest = hashlib.sha256(self._file.read(offset) if offset else b"")

    def write(self, event: dict[str, Any]) -> None:
        """Append one event."""
        line = (json.dumps(finite(event), allow_nan=False) + "\n").encode()
        with naming(self._path):
            self._file.write(line)
            self._file.flush()
        self._digest.update(line)

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Have all that was written on the disk."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, size: int = -1) -> list[dict[str, Any]]:
    """The events in the first `size` bytes of a record, or (default) in all of it.

    ValueError naming the line that is none.
    """
    events = []
    with path.open("rb") as file:
        for number, line in enumerate(file.read(size).splitlines(), 1):
            try:
                events.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is damaged ({error})") from error
    return events


def end_event(path: Path) -> dict[str, Any] | None:
    """The end event of a finished run, the last line of its record; None for any other."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - (1 << 16), 0))
            event = json.loads(file.read().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return None
    return event if isinstance(event, dict) and event.get("type") == "end" else None


def digests(path: Path, sizes: Iterable[int]) -> dict[int, str]:
    """SHA-256 of the first bytes of a record, for those of the `sizes` that it reaches."""
    found, digest = {}, hashlib.sha256()
    if not path.exists():
        return found
    with path.open("rb") as file:
        for size in sorted(set(sizes)):
            digest.update(file.read(size - file.tell()))
            if file.tell() < size:
                break
            found[size] = digest.hexdigest()
    return found


def finite(value: Any) -> Any:
    """`value` with None in place of not-a-number and infinities, inside dicts and lists too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
