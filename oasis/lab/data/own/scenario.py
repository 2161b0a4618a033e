"""Which files make which tasks: those that `data` names, or those of a scenario of COAST or Adapt.

A scenario is a JSON list of `{"client_id", "datasets": [{"dataset", "subset_id", "type":
"multi-choice" or "open-ended", "metric": a text, may be absent}, ...]}`; the rows of an entry lie
in `dataset/<dataset>/{train,test}/dataset-<subset_id>.json`, `dataset` beside the scenario or
beside the folder that it is in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis.lab.data.json_files import kind_of, read_list
from oasis.lab.data.own.rows import check_source, is_local
from oasis.lab.data.own.settings import DataSettings

HOME = "dataset"
OPEN, CLOSED = "open-ended", "multi-choice"
LARGEST = 1 << 20  # bytes of a scenario: a file of rows need not be parsed to tell it from one


@dataclass(frozen=True)
class Part:
    """A source of rows to train on, the task they are of, and the source of held-out ones, if it is
    one of its own. `open_ended`: the answers are free text, however few there are.
    """

    name: str
    train: str
    test: str | None = None
    open_ended: bool = False
    metric: str | None = None  # as the scenario names it


def parts_of(settings: DataSettings) -> list[Part]:
    """The parts that `data` names, in the order of their arrival.

    Raises:
        FileNotFoundError, ValueError: a source that can't be read, see `check_source`; or a
            scenario that is not of the format, by file and entry.
    """
    scenarios = [path for path in settings.path if is_scenario(path)]
    if scenarios:
        if len(settings.path) + len(settings.test) > 1:
            raise ValueError(
                f"data: {scenarios[0]} is a scenario, which names its files; expected no other"
            )
        return _parts(Path(scenarios[0]), settings.client)
    if settings.client is not None:
        raise ValueError("data.client: of no use here, where no scenario has clients")
    for source in (*settings.path, *settings.test):
        check_source(source)
    tests = [*settings.test, *[None] * (len(settings.path) - len(settings.test))]
    names = task_names(settings.path)
    return [Part(*part) for part in zip(names, settings.path, tests, strict=True)]


def task_names(paths: Sequence[str]) -> list[str]:
    """What tasks are called that are a file each: its name without the ending, where that is no
    other's too, else the path.
    """
    short = [Path(path).stem if is_local(path) else path for path in paths]
    return [
        name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)
    ]


def is_scenario(source: str) -> bool:
    """Whether that file is a list whose first entry has "datasets"."""
    path = Path(source)
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > LARGEST:
        return False
    try:
        first = read_list(path)[0]
    except ValueError:  # whoever reads its rows says what is wrong
        return False
    return isinstance(first, dict) and "datasets" in first


def _parts(path: Path, client: int | str | None) -> list[Part]:
    clients: dict[str, tuple[str, list[Any]]] = {}
    for number, entry in enumerate(read_list(path)):
        where = f"{path}[{number}]"
        name = _field(entry, where, "client_id", _is_name, "a number or text")
        found = _field(entry, where, "datasets", _is_filled, "a list of objects")
        if str(name) in clients:
            raise ValueError(f'{where}: got {name!r} as "client_id" a second time')
        clients[str(name)] = f"{where}.datasets", found
    names = ", ".join(clients)
    if client is None and len(clients) > 1:
        raise ValueError(f"data.client: {path} has several clients, expected one of {names}")
    chosen = next(iter(clients)) if client is None else str(client)
    if chosen not in clients:
        raise ValueError(f"data.client: got {client!r}, expected one of {names}")
    place, entries = clients[chosen]
    parts = [_part(path, entry, f"{place}[{k}]") for k, entry in enumerate(entries)]
    for k, part in enumerate(parts):
        if part.name in [other.name for other in parts[:k]]:
            raise ValueError(f"{place}[{k}]: {part.name} comes a second time")
    return parts


def _part(path: Path, entry: Any, where: str) -> Part:
    name = _field(entry, where, "dataset", _is_text, "the name of a folder")
    subset = _field(entry, where, "subset_id", _is_name, "a number or text")
    kind = _field(entry, where, "type", (CLOSED, OPEN).__contains__, f'"{CLOSED}" or "{OPEN}"')
    metric = None
    if entry.get("metric") is not None:
        metric = _field(entry, where, "metric", lambda x: isinstance(x, str), "a text, or none")
    homes = [path.parent / HOME, path.parent.parent / HOME]
    home = next((home for home in homes if (home / name).is_dir()), None)
    if home is None:
        raise FileNotFoundError(f"{where}: no folder {name} in {homes[0]} or {homes[1]}")
    files = [home / name / half / f"dataset-{subset}.json" for half in ("train", "test")]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{where}: no file {file}")
    train, test = map(str, files)
    return Part(f"{name}-{subset}", train, test, kind == OPEN, metric)


def _field(entry: Any, where: str, field: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """What `entry` has there; ValueError unless it is an object and that fits."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: got {kind_of(entry)}, expected an object")
    value = entry.get(field)
    if fits(value):
        return value
    got = f'no "{field}"'
    if field in entry:
        text = json.dumps(value, ensure_ascii=False)
        got = f'{text if len(text) < 60 else kind_of(value)} as "{field}"'
    raise ValueError(f"{where}: got {got}, expected {expected}")


def _is_name(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)
