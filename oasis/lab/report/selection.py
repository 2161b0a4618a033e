"""The page of `oasis select`: what was kept of the rows of a file, and why the others were not."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from oasis.lab.report import figures, groups, html, samples
from oasis.lab.report.runs import Batch, Run
from oasis.lab.report.samples import ALL, SHOWN, Sample, Twin
from oasis.train import atomic

FIGURES = (
    (
        figures.relative,
        "Relative informativeness",
        "z of every row, beside the N(0, 1) that the threshold assumes.",
    ),
    (
        figures.realised_ratio,
        "Realised ratio",
        f"Kept of all rows so far (bold) and of the last {figures.WINDOW} batches (thin).",
    ),
    (
        figures.selected_per_task,
        "Kept of each file",
        "Share of each file's rows that was kept; over the bar, how many.",
    ),
)


def write(record: Path, out: Path) -> Path:
    """Write the page of the selection with this record (`NAME.record.jsonl`) and return its path.

    Raises:
        ValueError: it is no such record.
    """
    start = _start(record)
    run, why = _run(record, start)
    shown = _with_texts(record, _shown(_samples(record, run.tasks)))
    cards = []
    for k, (draw, title, caption) in enumerate(FIGURES):
        if draw is figures.selected_per_task and len(run.tasks) < 2:
            continue
        figure = draw(groups.group([run])) if run.batches else None
        if figure is not None:
            cards.append(html.card(figure, f"f{k}-", title, caption, wide=False))
    page = html.load_template("selection.html.j2").render(
        facts=[("rows", ", ".join(run.tasks)), *_facts(start)],
        run=run,
        why=why.most_common(),
        figures=cards,
        samples=shown,
        columns={"task": "file"} if "task" in samples.columns(shown) else {},
    )
    atomic.write(out, page)
    return out


def _start(record: Path) -> dict[str, Any]:
    with record.open(encoding="utf-8") as file:
        try:
            start = json.loads(file.readline())
            if start.pop("type") == "start" and {"policy", "ratio", "data"} <= start.keys():
                return start
        except (ValueError, AttributeError, KeyError, TypeError):
            pass
    raise ValueError(f"{record}: is no record of `oasis select`")


def _facts(start: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in start.items():
        if name != "data" and value not in (None, {}):
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _rows(record: Path) -> Iterator[dict[str, Any]]:
    with record.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["type"] == "row":
                yield row


def _run(record: Path, start: dict[str, Any]) -> tuple[Run, Counter[str]]:
    """The selection as if it were a run, whose tasks are the files; how many rows were left out for
    which reason.
    """
    run = Run(
        path=record,
        policy=start["policy"],
        name=record.name,
        label=start["policy"],
        ratio=start["ratio"],
        tasks=[str(path) for path in start["data"].get("path", [])],
        end={"type": "end", "seconds": 0.0},
    )
    why: Counter[str] = Counter()
    batch = Batch(0, [], [], [], None, 0.0, 0)
    for row in _rows(record):
        why[row.get("why", "kept")] += 1
        if "score" not in row:  # no candidate
            continue
        if len(batch.selected) == start.get("batch_size", 16):
            run.batches.append(batch)
            batch = Batch(batch.index + 1, [], [], [], None, 0.0, 0)
        batch.task.append(_file(row["key"], run.tasks))
        batch.selected.append(row["kept"])
        assert batch.relative is not None
        batch.relative.append(row["z"])
    if batch.selected:
        run.batches.append(batch)
    return run, why


def _file(key: str, files: list[str]) -> int | None:
    """Which of the files a row's key ("rows.jsonl:17", "table.parquet[16]",
    "folder/train[2]") is of."""
    own = [k for k, file in enumerate(files) if key.startswith(_beginnings(file))]
    return max(own, key=lambda k: len(_beginnings(files[k])[0]), default=None)


@cache
def _beginnings(file: str) -> tuple[str, str, str]:
    """Of the keys of a file's rows."""
    name = str(Path(file))  # as keys have it
    return f"{name}:", f"{name}[", f"{name}/"


def _samples(record: Path, files: list[str]) -> Iterator[Sample]:
    for row in _rows(record):
        z = row.get("z") if row.get("z") is not None else row.get("score")
        if z is None:
            continue
        place, why = _file(row["key"], files), row.get("why", "")
        task = "" if place is None else files[place]
        sample = Sample("", row["key"], task, row.get("text", ""), z, 1, int(row["kept"]), why=why)
        if why == "redundant":
            sample.twin = Twin(row["with"], "", row["cosine"], row["shared"])
        yield sample


class _Best:
    """The `SHOWN` items with the greatest rank."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Sample]] = []
        self.number = count()

    def add(self, rank: float, item: Sample) -> None:
        push = heapq.heappush if len(self.heap) < SHOWN else heapq.heappushpop
        push(self.heap, (rank, next(self.number), item))

    def items(self) -> Iterator[Sample]:
        return (item for _, _, item in self.heap)


def _shown(found: Iterable[Sample]) -> list[Sample]:
    """What `samples.ends` shows of any number of rows, of which few are held at a time."""
    first: list[Sample] = []
    best: dict[str, tuple[_Best, _Best, _Best]] = {}
    number = 0
    for number, sample in enumerate(found, start=1):
        if number <= ALL:
            first.append(sample)
        most, least, twins = best.setdefault(sample.task, (_Best(), _Best(), _Best()))
        most.add(sample.z, sample)
        least.add(-sample.z, sample)
        if sample.twin is not None:
            twins.add(abs(sample.twin.cosine), sample)
    if number <= ALL:
        return samples.ends(first)
    kept = {sample.key: sample for own in best.values() for b in own for sample in b.items()}
    return samples.ends(list(kept.values()))


def _with_texts(record: Path, shown: list[Sample]) -> list[Sample]:
    """The samples, whose twins have their texts."""
    wanted = {sample.twin.key for sample in shown if sample.twin is not None}
    texts = {row["key"]: row.get("text", "") for row in _rows(record) if row["key"] in wanted}
    for sample in shown:
        if sample.twin is not None:
            sample.twin = dataclasses.replace(sample.twin, text=texts.get(sample.twin.key, ""))
    return shown
