"""The record of a run: `events.jsonl`, one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis.lab.record.events import VERSION, End, Event, parse
from oasis.lab.record.lines import Lines

EVENTS = "events.jsonl"
CONFIG = "config.yaml"  # beside it: the settings of the run,
ADAPTER = "adapter"  # and the folder of its LoRA weights, once it is finished


class EventLog(Lines):
    """Appends events to a file; each is with the system as soon as it is written.

    Not-a-number and infinities, which JSON does not have, become null. `path` and `offset` as of
    `Lines`.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        super().__init__(path, offset)
        self._digest = hashlib.sha256(path.read_bytes())

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        line = json.dumps(finite(dict(event)), allow_nan=False).encode()
        self.add(line)
        self.flush()
        self._digest.update(line + b"\n")

    @property
    def digest(self) -> str:
        """SHA-256 of what was written so far."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class Record:
    """What a record says. `damage`: of each line that is no event, its number and what is wrong;
    the end of a line that a kill cut short is one of them.
    """

    path: Path
    events: list[Event]
    damage: list[str]


def read(path: Path, size: int = -1) -> Record:
    """The first `size` bytes of a record, or (default) all of it, as far as it can be read.

    Raises:
        ValueError: naming the file: it is empty, or of a later version than this one.
    """
    events: list[Event] = []
    damage = []
    with path.open("rb") as file:
        for number, line in enumerate(file.read(size).splitlines(), 1):
            if not line.strip():
                continue
            try:
                event = parse(line)
            except ValueError as error:
                damage.append(f"line {number} is damaged ({error})")
                event = _rescued(line)
            if event is not None:
                events.append(event)
                _check_version(path, event)
    if not events and not damage:
        raise ValueError(f"{path}: the record is empty")
    return Record(path, events, damage)


def read_events(path: Path, size: int = -1) -> list[Event]:
    """The events of a record that is whole; ValueError naming the line that is none."""
    record = read(path, size)
    if record.damage:
        raise ValueError(f"{path}: {record.damage[0]}")
    return record.events


def _rescued(line: bytes) -> Event | None:
    """Of a run that was killed mid-line and resumed, the event behind the torn text."""
    start = line.rfind(b'{"type"')
    try:
        return parse(line[start:]) if start > 0 else None
    except ValueError:
        return None


def _check_version(path: Path, event: Event) -> None:
    if event["type"] == "start" and (found := event.get("version", 1)) > VERSION:
        raise ValueError(f"{path}: got version {found}, expected at most {VERSION}; read it with "
                         "the version of oasis that wrote it")  # fmt: skip


def end_event(path: Path) -> End | None:
    """The end event of a finished run, the last line of its record; None for any other."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - (1 << 16), 0))
            event = parse(file.read().splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return None
    return event if event is not None and event["type"] == "end" else None


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
