"""The record of a run: `events.jsonl`, one JSON object per line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to a file; each is with the system as soon as it is written.

    Not-a-number and infinities, which JSON does not have, become null.

    Args:
        path (Path): The file.
        offset (int): Bytes of an earlier record to keep, default 0; what follows them is cut off,
            so that a resumed run does not repeat the steps between its checkpoint and its end.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._file = path.open("r+b" if offset else "wb")
        self._file.truncate(offset)
        self._file.seek(offset)

    def write(self, event: dict[str, Any]) -> None:
        """Append one event."""
        line = json.dumps(finite(event), allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, size: int = -1) -> list[dict[str, Any]]:
    """The events in the first `size` bytes of a record, or (default) in all of it."""
    with path.open("rb") as file:
        return [json.loads(line) for line in file.read(size).splitlines()]


def finite(value: Any) -> Any:
    """`value` with None in place of not-a-number and infinities, inside dicts and lists too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
