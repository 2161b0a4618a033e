"""Rows of a file, a folder or a hub name, one after another, each with a key and as it stands.

Text files are read here and not by `datasets`, whose readers guess types (the answer "01" comes
out as the number 1), and whose errors name no line. Parquet files, folders of `save_to_disk` and
names on the hub are its own.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oasis.lab.data.json_files import UTF16, decode, is_json_lines, kind_of, read_json
from oasis.lab.data.pictures import data_uri

SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")  # what `save_to_disk` leaves


@dataclass(frozen=True)
class Row:
    """`values` by field; `key` says where it is ("rows.jsonl:17", "table.parquet[16]"); `line` is
    the JSON text of the row, in a file of JSON lines to the letter.
    """

    key: str
    values: dict[str, Any]
    line: str


def read_rows(
    source: str, *, split: str = "train", subset: str | None = None, streaming: bool = False
) -> Iterator[Row]:
    """The rows of `source`: a .jsonl, .json, .csv, .tsv or .parquet file, a folder that
    `save_to_disk` wrote, or a name on the Hugging Face hub.

    Args:
        split: the part of a folder or hub name to read.
        subset: the configuration of a hub name, if it has several.
        streaming: read from the hub as the rows come, without downloading all of them first.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a row cannot be read; the message names file and line, or entry.
    """
    check_source(source)
    path = Path(source)
    if path.is_dir():
        return _saved(path, split)
    if not is_local(source):
        return _hub(source, split, subset, streaming)
    return READERS[path.suffix.lower()](path)


def check_source(source: str) -> None:
    """FileNotFoundError or ValueError where `source` is here, or should be, and can't be read."""
    path = Path(source)
    if path.is_dir():
        if not any((path / name).exists() for name in SAVED):
            raise ValueError(
                f"data: the folder {path} has none of {', '.join(SAVED)}; expected one that "
                "`save_to_disk` of the library datasets wrote, or a file"
            )
    elif is_local(source):
        if not path.is_file():
            raise FileNotFoundError(f"data: no file {path}")
        if path.suffix.lower() not in READERS:
            raise ValueError(f"data: got the file {path}, expected one of {', '.join(READERS)}")


def is_local(source: str) -> bool:
    """Whether `source` is a file or folder here, or can only be meant as one."""
    path = Path(source)
    named = path.suffix.lower() in READERS or path.is_absolute() or source.startswith(".")
    return named or path.exists()


def _json_lines(path: Path) -> Iterator[Row]:
    number = 0
    with path.open("rb") as file:
        for ended in file:
            if number == 0:
                if ended.startswith(UTF16):
                    raise ValueError(f"{path}: UTF-16 text, expected UTF-8")
                ended = ended.removeprefix(codecs.BOM_UTF8)
            # A lone carriage return ends a line too; JSON has none inside its texts.
            for content in ended.removesuffix(b"\n").removesuffix(b"\r").split(b"\r"):
                number += 1
                if content.strip():
                    yield _json_line(content, f"{path}:{number}")


def _json_line(content: bytes, key: str) -> Row:
    line = decode(content, key)
    try:
        values = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{key}: not JSON ({error})") from None
    return Row(key, _object(values, key), line)


def _object(values: Any, key: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{key}: got {kind_of(values)}, expected an object with fields")
    return values


def _json(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if is_json_lines(head.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="replace")):
        yield from _json_lines(path)
        return
    entries = read_json(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: got {kind_of(entries)}, expected a list of objects")
    for index, values in enumerate(entries):
        key = f"{path}[{index}]"
        yield _row(_object(values, key), key)


def _row(values: dict[str, Any], key: str) -> Row:
    line = json.dumps(values, ensure_ascii=False, default=_unnamed)
    try:
        line.encode()
    except UnicodeEncodeError:  # half a character, in whatever field
        line = json.dumps(values, default=_unnamed)
    return Row(key, values, line)


def _unnamed(value: Any) -> str:
    """What JSON has no name for: bytes (of images) such that they are read again; dates and the
    like as Python writes them.
    """
    return data_uri(value) if isinstance(value, bytes) else str(value)


def _table(delimiter: str) -> Callable[[Path], Iterator[Row]]:
    return lambda path: _delimited(path, delimiter)


def _delimited(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)  # of the module's own 128 K, a long text is more
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        names: list[str] = []
        start = 1
        try:
            for cells in lines:
                if cells and not names:
                    names = _header(path, cells)
                elif cells:
                    yield _row(_cells(names, cells, f"{path}:{start}"), f"{path}:{start}")
                start = lines.line_num + 1
        except csv.Error as error:
            raise ValueError(f"{path}:{start}: not a table ({error})") from None
        except UnicodeDecodeError:
            decode(path.read_bytes(), str(path))  # names the line
            raise


def _header(path: Path, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        what = f"the column {twice[0]!r} twice" if twice else "a column without a name"
        raise ValueError(f"{path}:1: got {what}, expected a header with different names")
    return names


def _cells(names: list[str], cells: list[str], key: str) -> dict[str, Any]:
    if len(cells) != len(names):
        raise ValueError(f"{key}: got {len(cells)} cells, expected {len(names)} as in the header")
    return dict(zip(names, cells, strict=True))


def _parquet(path: Path) -> Iterator[Row]:
    import datasets
    from datasets.exceptions import DatasetGenerationError

    try:
        # As a stream: otherwise `datasets` makes a copy of it in its cache.
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        yield from _dataset(rows, str(path))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise ValueError(f"{path}: not a Parquet file that can be read ({error})") from error


def _saved(path: Path, split: str) -> Iterator[Row]:
    import datasets

    rows = datasets.load_from_disk(str(path))
    if isinstance(rows, datasets.DatasetDict):
        if split not in rows:
            raise ValueError(f"data.split: got {split!r}, {path} has {', '.join(map(str, rows))}")
        rows, path = rows[split], path / split
    return _dataset(rows, str(path))


def _hub(name: str, split: str, subset: str | None, streaming: bool) -> Iterator[Row]:
    import datasets
    from datasets.exceptions import DatasetGenerationError

    try:
        rows = datasets.load_dataset(name, subset, split=split, streaming=streaming)
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise OSError(
            f"data: no file {name}, and the Hugging Face hub gave nothing ({error})"
        ) from error
    return _dataset(rows, f"{name}/{split}")


def _dataset(rows: Any, name: str) -> Iterator[Row]:
    """The rows of a map-style or iterable dataset; the numbers of class labels as their names,
    images as they lie in it, not decoded.
    """
    features = rows.features or {}
    for key, feature in features.items():
        if (stored := _undecoded(feature)) != feature:
            rows = rows.cast_column(key, stored)
    labels = {key: feature for key, feature in features.items() if hasattr(feature, "int2str")}
    for index, values in enumerate(rows):
        for key, feature in labels.items():
            if isinstance(values[key], int) and values[key] >= 0:  # -1: none is known
                values[key] = feature.int2str(values[key])
        yield _row(values, f"{name}[{index}]")


def _undecoded(feature: Any) -> Any:
    """A feature of which images are their path and bytes: viewers and `datasets` don't decode
    alike (`oasis.lab.data.pictures`).
    """
    import datasets

    if isinstance(feature, datasets.Image):
        return datasets.Image(mode=feature.mode, decode=False)
    if isinstance(feature, (datasets.List, datasets.LargeList)):
        return replace(feature, feature=_undecoded(feature.feature))
    return feature


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
}
