"""Rows of one's own as tasks: read once, encoded, split, and counted."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoded import EncodedTask
from oasis.lab.data.own.encoder import Encoder, white_space
from oasis.lab.data.own.fields import PAIR, Layout, Sample, find_layout
from oasis.lab.data.own.rows import Row, read_rows
from oasis.lab.data.own.scenario import Part, parts_of
from oasis.lab.data.own.settings import DataSettings
from oasis.lab.data.own.store import Items, Store
from oasis.lab.data.own.tokens import EMPTY, IMAGES_TOO_LONG, TOO_LONG, Encoded

# A closed set of answers is found where at most so many, of at most so many characters, come ten
# times each on average.
MOST_CHOICES, LONGEST_CHOICE, TIMES = 20, 40, 10


def samples(
    settings: DataSettings, source: str, vision: bool = False
) -> Iterator[tuple[Row, Sample]]:
    """The rows of one source and what they say, to a model that takes images or (not `vision`) text
    alone. ValueError naming the first that says nothing.
    """
    rows = read_rows(
        source, split=settings.split, subset=settings.subset, streaming=settings.streaming
    )
    layout: Layout | None = None
    for row in islice(rows, settings.rows):
        if layout is None:
            layout = find_layout(
                row,
                prompt=settings.prompt,
                completion=settings.completion,
                messages=settings.messages,
                text=settings.text,
                image=settings.image,
                folder=_folder(settings, source),
                vision=vision,
            )
        yield row, layout.sample(row)
    if layout is None:
        raise ValueError(f"data: {source} has no rows")


def _folder(settings: DataSettings, source: str) -> Path:
    """What paths of images are relative to."""
    if settings.image_folder is not None:
        return Path(settings.image_folder)
    return Path(source) if Path(source).is_dir() else Path(source).parent


@dataclass
class Counts:
    """What became of rows."""

    rows: int = 0
    empty: int = 0
    dropped: int = 0
    too_long: int = 0
    cut: int = 0
    last_only: int = 0

    def add(self, found: Encoded | str) -> None:
        """Count a row: its tokens, or why it has none (see `Encoder.or_why`)."""
        self.rows += 1
        if isinstance(found, Encoded):
            self.cut += found.cut > 0
            self.last_only += found.last_only
        else:
            self.empty += found == EMPTY
            self.dropped += found == TOO_LONG
            self.too_long += found == IMAGES_TOO_LONG

    def losses(self, max_length: int) -> list[str]:
        """What was not taken as it is, in words."""
        reasons = {
            f"cut to {max_length} tokens": self.cut,
            "left out, for the answer leaves no room": self.dropped,
            f"left out, for they have images and more than {max_length} tokens": self.too_long,
            "left out, for they are empty": self.empty,
            "learnt by the last answer alone (the chat template rewrites earlier turns)": (
                self.last_only
            ),
        }
        return [f"{count} {what}" for what, count in reasons.items() if count]


@dataclass
class _Task:
    """A task while its rows come in."""

    name: str
    train: array = field(default_factory=lambda: array("q"))  # numbers in the store
    test: array = field(default_factory=lambda: array("q"))
    digests: array = field(default_factory=lambda: array("Q"))  # of those in `train`
    answers: Counter | None = field(default_factory=Counter)  # None: not a closed set
    others: int = 0  # rows whose answer is none of those asked for
    styles: dict[str, Sample] = field(default_factory=dict)  # the first of each
    counts: Counts = field(default_factory=Counts)
    metric: str | None = None  # that a scenario names


@dataclass(frozen=True)
class Loaded:
    """Tasks, the store that holds their rows, the numbers there of each task's training rows, what
    there is to say, and a digest of all of it.
    """

    tasks: list[EncodedTask]
    store: Store
    arrivals: list[Sequence[int]]
    said: list[str]
    digest: str


def load(
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    seed: int = 0,
    processor: Any = None,
) -> Loaded:
    """Read all rows once. `seed` decides which are held out; `processor`: of a vision-language
    model.

    Raises:
        FileNotFoundError, ValueError: see `read_rows`, `find_layout` and `Encoder`; a task has too
            few rows.
    """
    encoder = Encoder(tokenizer, max_length, settings.chat, processor)
    return _Loader(settings, encoder, seed).load()


class _Loader:
    def __init__(self, settings: DataSettings, encoder: Encoder, seed: int) -> None:
        self.settings, self.encoder, self.seed = settings, encoder, seed
        self.max_length = encoder.max_length
        self.parts = parts_of(settings)
        self.tested = any(part.test is not None for part in self.parts)
        self.store = Store()
        self.tasks: dict[str, _Task] = {}
        self.digest = hashlib.sha256()

    def load(self) -> Loaded:
        for part in self.parts:
            self._read(part, part.train, held_out=False)
        for part in self.parts:
            if part.test is not None:
                self._read(part, part.test, held_out=True)
        tasks = [self._finish(task) for task in self.tasks.values()]
        said = [line for task in self.tasks.values() for line in self._said(task)]
        arrivals: list[Sequence[int]] = [task.train for task in self.tasks.values()]
        return Loaded(tasks, self.store, arrivals, said, self.digest.hexdigest())

    def _read(self, part: Part, source: str, held_out: bool) -> None:
        column = self.settings.task
        vision = self.encoder.processor is not None
        for row, sample in samples(self.settings, source, vision):
            task = part.name if column is None else _task_of(row, column)
            if task not in self.tasks:
                if held_out and column is None and len(self.parts) == 1 == len(self.tasks):
                    task = next(iter(self.tasks))
                elif held_out:
                    raise ValueError(
                        f"{row.key}: of the task {task!r}, of which there are no rows to train on"
                    )
                else:
                    self.tasks[task] = _Task(task, metric=part.metric)
                    if part.open_ended:
                        self.tasks[task].answers = None
            self._take(self.tasks[task], sample, held_out)

    def _take(self, task: _Task, sample: Sample, held_out: bool) -> None:
        answer = sample.answer
        encoded = self.encoder.or_why(sample)
        task.counts.add(encoded)
        if isinstance(encoded, str):
            return
        style = _style(sample)
        task.others += answer is None or answer.strip() not in (self.settings.answers or ())
        if answer is None or len(answer) > LONGEST_CHOICE:
            task.answers = None
        elif task.answers is not None:
            task.answers[answer.strip()] += 1
            if len(task.answers) > MOST_CHOICES:
                task.answers = None
        task.styles.setdefault(style, sample)
        number = self.store.add(
            input_ids=encoded.ids,
            labels=encoded.labels,
            key=sample.key,
            answer=(answer or "").strip(),
            style=style,
            **_pictured(sample),
        )
        # What is asked decides, so that a question is on one side, whatever it is answered by.
        asked = [turn for turn in sample.turns if turn[0] != "assistant"] or sample.turns
        seen = [hashlib.sha256(content).hexdigest() for content in encoded.contents]
        digest = hashlib.sha256(repr((self.seed, asked, *seen)).encode()).digest()
        row = (task.name, held_out, encoded.ids, encoded.labels, *seen)
        self.digest.update(repr(row).encode())
        if held_out:
            task.test.append(number)
        else:
            task.train.append(number)
            task.digests.append(int.from_bytes(digest[:8], "big"))

    def _finish(self, task: _Task) -> EncodedTask:
        if not self.tested:
            _split(task, self.settings.test_share)
        if not task.train:
            raise ValueError(
                f"data: the task {task.name!r} has no rows to train on, of {task.counts.rows} "
                "that were read; " + ("; ".join(task.counts.losses(self.max_length)) or "add more")
            )
        choices = self._choices(task)
        ids = {
            style: self.encoder.choices(sample, choices)
            for style, sample in (task.styles.items() if choices else ())
        }
        train, test = Items(self.store, task.train), Items(self.store, task.test)
        return EncodedTask(task.name, train, test, choices, ids)

    def _choices(self, task: _Task) -> tuple[str, ...]:
        if self.settings.answers is not None:
            if self.settings.answers and task.answers is None and not _has_answers(task):
                raise ValueError(
                    f"data.answers: rows of the task {task.name!r} have no single answer at their "
                    "end that could be one of them"
                )
            if self.settings.answers and task.others == len(task.train) + len(task.test):
                raise ValueError(
                    f"data.answers: no row of the task {task.name!r} is answered by one of "
                    f"{', '.join(self.settings.answers)}"
                )
            return tuple(self.settings.answers)
        found = task.answers or {}
        if len(found) >= 2 and sum(found.values()) >= TIMES * len(found):
            return tuple(sorted(found))
        return ()

    def _said(self, task: _Task) -> Iterator[str]:
        train, test = len(task.train), len(task.test)
        how = "" if self.tested or not test else (
            f" (data.test_share {self.settings.test_share:g}, by a digest of what they ask)"
        )  # fmt: skip
        rows = f"{task.counts.rows} row{'s' * (task.counts.rows != 1)}"
        yield f"{task.name}: {rows}, {train} to train on, {test} held out{how}"
        if not self.tested and not test and round(self.settings.test_share * train):
            yield (
                f"{task.name}: nothing is held out, since its rows ask the same too often to be "
                "parted by that; data.test names rows to judge by"
            )
        for loss in task.counts.losses(self.max_length):
            yield f"{task.name}: {loss}"
        if task.metric is not None and not self._choices(task):
            yield f"{task.name}: judged by held-out loss, not by the scenario's {task.metric!r}"
        choices = self._choices(task)
        if choices and self.settings.answers is None:
            found = ", ".join(choices)
            yield f"{task.name}: judged by its answers, {found} (data.answers: [] for free text)"
        elif choices and task.others:
            yield f"{task.name}: {task.others} with another answer than data.answers has"


def _pictured(sample: Sample) -> dict[str, Any]:
    """What the processor needs of a sample with images, for the store."""
    if not sample.images:
        return {}
    images = [{"path": image.path, "bytes": image.data} for image in sample.images]
    return {"turns": json.dumps(sample.turns), "images": images}


def _task_of(row: Row, column: str) -> str:
    value = row.values.get(column)
    if not isinstance(value, (str, int)) or isinstance(value, bool) or value == "":
        raise ValueError(f'{row.key}: got {value!r} as "{column}", expected the name of a task')
    return str(value)


def _style(sample: Sample) -> str:
    """How the answer follows: in a chat, behind white space, or with a space put between; and the
    white space that it has of its own.
    """
    before, behind = white_space(sample.answer or "")
    own = f", its own {before!r} {behind!r}" if before or behind else ""
    if sample.kind != PAIR:
        return sample.kind + own
    return ("pair, white space" if sample.turns[0][1][-1:].isspace() else "pair") + own


def _has_answers(task: _Task) -> bool:
    return all(sample.answer is not None for sample in task.styles.values())


def _split(task: _Task, share: float) -> None:
    """Hold out the rows with the smallest digests; equal ones stay together, but for groups that
    would be more than the share.
    """
    left, held_out = round(share * len(task.train)), set()
    for digest, size in sorted(Counter(task.digests).items()):
        if size <= left:
            left -= size
            held_out.add(digest)
    pairs = list(zip(task.train, task.digests, strict=True))
    task.test = array("q", (number for number, digest in pairs if digest in held_out))
    task.train = array("q", (number for number, digest in pairs if digest not in held_out))
