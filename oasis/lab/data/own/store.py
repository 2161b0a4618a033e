"""Encoded rows in an Arrow file that is mapped into memory, so that any number of them fits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import pyarrow as pa

from oasis.names import IGNORED
from oasis.train.batch.columns import ITEM

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("learnt", pa.list_(pa.int32())),  # where labels begin and end: half the size of labels
        ("key", pa.string()),
        ("answer", pa.string()),
        ("style", pa.string()),
        ("turns", pa.string()),  # of samples with images, as JSON, for the processor
        ("images", pa.list_(pa.struct([("path", pa.string()), ("bytes", pa.binary())]))),
    ]
)
TOGETHER = 1000  # rows written at once, fewer where their images have more than
MOST_BYTES = 1 << 28  # bytes: a column of a batch holds less than 2^31


class Store:
    """Rows are added, then `rows` gives them by number. The file goes with the object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="oasis-rows-")
        self.path = Path(self._folder.name) / "rows.arrow"
        self._writer = pa.ipc.new_stream(str(self.path), SCHEMA)
        self._waiting: list[dict[str, Any]] = []
        self._bytes = 0  # of images among them
        self._rows: Any = None
        self.count = 0

    def add(self, *, input_ids: list[int], labels: list[int], **row: Any) -> int:
        """Write one row and return its number. `labels` are those ids, or -100."""
        self._waiting.append({"input_ids": input_ids, "learnt": _edges(labels), **row})
        self.count += 1
        self._bytes += sum(len(image["bytes"] or b"") for image in row.get("images") or ())
        if len(self._waiting) == TOGETHER or self._bytes > MOST_BYTES:
            self._flush()
        return self.count - 1

    def _flush(self) -> None:
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._waiting, SCHEMA))
        self._waiting.clear()
        self._bytes = 0

    @property
    def rows(self) -> Any:
        """All rows; nothing can be added any more."""
        if self._rows is None:
            import datasets

            self._flush()
            self._writer.close()
            self._rows = datasets.Dataset.from_file(str(self.path))
        return self._rows


class Items(Sequence[dict[str, Any]]):
    """Items of a stream by their place in `numbers`: rows of a store, looked up when asked for."""

    def __init__(self, store: Store, numbers: Sequence[int]) -> None:
        self.store, self.numbers = store, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Items: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | Items:
        if isinstance(index, slice):
            return Items(self.store, self.numbers[index])
        number = self.numbers[index]
        row = self.store.rows[number]
        labels = _labels(row["input_ids"], row.pop("learnt"))
        return {**row, "labels": labels, ITEM: number}


def _edges(labels: Sequence[int]) -> list[int]:
    """Where runs of labels begin and end, one after another.

    >>> _edges([-100, 7, 8, -100, 9])
    [1, 3, 4, 5]
    """
    learnt = [False, *(label != IGNORED for label in labels), False]
    return [at for at in range(len(labels) + 1) if learnt[at] != learnt[at + 1]]


def _labels(ids: Sequence[int], edges: Sequence[int]) -> list[int]:
    """
    >>> _labels([5, 7, 8, 6, 9], [1, 3, 4, 5])
    [-100, 7, 8, -100, 9]
    """
    labels = [IGNORED] * len(ids)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        labels[start:end] = ids[start:end]
    return labels
