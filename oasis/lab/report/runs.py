"""Run directories as plain dataclasses: `config.yaml` beside `events.jsonl`, one object per line.

A run may still be in progress, may have been killed in the middle of a line, and may have been
resumed (which repeats the events after its last checkpoint). All three read as what they are:
unreadable text is counted, repeated batches replace the ones written before.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from oasis.lab import strict_yaml

logger = logging.getLogger(__name__)

EVENTS = "events.jsonl"
GRID = "compare.yaml"  # of a comparison, beside the folder of its runs


@dataclass
class Batch:
    """One candidate batch: what the policy saw, what it took, what that cost."""

    index: int
    task: list[int | None]
    selected: list[bool]
    relative: list[float | None] | None  # z, one per candidate; None where nothing was scored
    threshold: float | None
    seconds: float  # scoring forward and selection
    skipped: int  # candidates whose scores were not finite

    @property
    def num_candidates(self) -> int:
        return len(self.selected)

    @property
    def num_selected(self) -> int:
        return sum(self.selected)


@dataclass
class Evaluation:
    """Held-out accuracy after `after_task` (-1: before training), in [0, 1], by task name."""

    after_task: int
    accuracy: dict[str, float]
    seconds: float
    candidates: int  # candidates seen when it was taken
    seconds_before: float = 0.0  # of scoring and training


@dataclass
class Run:
    """One run. Figures and table are functions of this alone."""

    path: Path
    policy: str
    name: str = ""  # the folder's, with those above it where others have the same
    label: str = ""  # of the policy's variant; the policy's name where the record has none
    ratio: float | None = None
    seed: int | None = None
    tasks: list[str] = field(default_factory=list)
    model: str = ""
    device: str = ""
    held_out: dict[str, int] = field(
        default_factory=dict
    )  # task -> items it is evaluated on, if known
    batches: list[Batch] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    steps: dict[int, float] = field(default_factory=dict)  # step -> seconds of training
    end: dict | None = None  # the end event; None while in progress
    unreadable: int = 0  # lines that are no event, e.g. the one a kill cut short
    config: str = ""  # text of config.yaml

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read one run directory. FileNotFoundError if it has no events.jsonl."""
        path = Path(path)
        events = path / EVENTS
        if not events.is_file():
            raise FileNotFoundError(f"run directory {path} has no {EVENTS}")
        run = cls(path=path, policy=path.name, name=path.name)
        config = path / "config.yaml"
        if config.is_file():
            run.config = config.read_text(encoding="utf-8", errors="replace")
        with events.open(encoding="utf-8", errors="replace") as lines:
            for event in _events(lines, run):
                try:
                    _READERS.get(event["type"], _ignore)(run, event)
                except (TypeError, ValueError, AttributeError):
                    run.unreadable += 1
        run.label = run.label or run.policy
        if not run.held_out:
            size = run.settings.get("held_out")
            run.held_out = dict.fromkeys(run.tasks, size if isinstance(size, int) else None)
        run.held_out = {name: size for name, size in run.held_out.items() if size}
        return run

    @cached_property
    def settings(self) -> dict:
        """What config.yaml says; empty where it is missing or damaged."""
        try:
            settings = strict_yaml.parse(self.config, "config.yaml")
        except ValueError:
            return {}
        return settings if isinstance(settings, dict) else {}

    # -- amounts --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.end is not None

    @property
    def candidates(self) -> int:
        return sum(batch.num_candidates for batch in self.batches)

    @property
    def selected(self) -> int:
        return sum(batch.num_selected for batch in self.batches)

    @property
    def skipped(self) -> int:
        return sum(batch.skipped for batch in self.batches)

    @property
    def realised_ratio(self) -> float | None:
        return self.selected / self.candidates if self.candidates else None

    @property
    def keeps_all(self) -> bool:
        """Whether the run trains on everything (policy `full`, or a ratio of 1)."""
        return self.policy == "full" or self.ratio == 1

    def per_task(self) -> list[tuple[int, int]]:
        """(selected, candidates) of each task, in the order of `tasks`."""
        counts = [[0, 0] for _ in self.tasks]
        for batch in self.batches:
            for task, selected in zip(batch.task, batch.selected, strict=False):
                if task is not None and 0 <= task < len(counts):
                    counts[task][0] += selected
                    counts[task][1] += 1
        return [(selected, candidates) for selected, candidates in counts]

    def relative(self) -> list[float]:
        """Every finite z of the run: relative informativeness of the candidates."""
        return [
            z
            for batch in self.batches
            for z in batch.relative or ()
            if z is not None and math.isfinite(z)
        ]

    # -- seconds --------------------------------------------------------------------------------

    @property
    def score_seconds(self) -> float:
        return sum(batch.seconds for batch in self.batches)

    @property
    def train_seconds(self) -> float:
        return sum(self.steps.values())

    @property
    def evaluation_seconds(self) -> float:
        """At the task boundaries. Accuracy before training is left out: runs may share it."""
        return sum(e.seconds for e in self.evaluations if e.after_task >= 0)

    @property
    def seconds(self) -> float:
        """Wall clock of a finished run, as its end event says; else the sum of the parts so far."""
        parts = self.score_seconds + self.train_seconds + self.evaluation_seconds
        return _number((self.end or {}).get("seconds")) or parts

    @property
    def scoring_share(self) -> float | None:
        """Scoring over scoring plus training; evaluation is left out."""
        work = self.score_seconds + self.train_seconds
        return self.score_seconds / work if work else None

    # -- accuracy -------------------------------------------------------------------------------

    def seen_accuracy(self) -> list[tuple[int, float]]:
        """(candidates seen, mean accuracy over the tasks seen so far) at each task boundary."""
        points = []
        for evaluation in self.evaluations:
            seen = self.tasks[: evaluation.after_task + 1]
            values = [evaluation.accuracy[name] for name in seen if name in evaluation.accuracy]
            if values:
                points.append((evaluation.candidates, sum(values) / len(values)))
        return points

    def accuracy_over_time(self) -> list[tuple[float, float]]:
        """(seconds of scoring and training so far, mean accuracy over all tasks) before training
        and at each task boundary: of every task what was measured last, at first zero-shot, so that
        a run does not look worse for having met more tasks.
        """
        points, known = [], {}
        for evaluation in self.evaluations:
            known |= evaluation.accuracy
            if all(name in known for name in self.tasks):
                mean = sum(known[name] for name in self.tasks) / len(self.tasks)
                points.append((evaluation.seconds_before, mean))
        return points

    def task_accuracy(self, name: str) -> list[tuple[int, float]]:
        """(candidates seen, accuracy on task `name`) wherever that was measured."""
        return [(e.candidates, e.accuracy[name]) for e in self.evaluations if name in e.accuracy]

    @property
    def a_last(self) -> float | None:
        """Mean accuracy over all tasks after the last one (docs/method.md 6); None until then."""
        last = self.evaluations[-1] if self.evaluations else None
        if last is not None and last.after_task == len(self.tasks) - 1 and last.accuracy:
            return self.seen_accuracy()[-1][1]
        return _number((self.end or {}).get("a_last"))

    @property
    def a_avg(self) -> float | None:
        """Mean over task boundaries (so far) of the mean accuracy over tasks seen so far."""
        points = self.seen_accuracy()
        if points:
            return sum(value for _, value in points) / len(points)
        return _number((self.end or {}).get("a_avg"))


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Expand `paths` to run directories: each is one itself, or a folder of them.

    Raises FileNotFoundError naming the first path that holds no run, ValueError for no paths.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    found: dict[Path, Path] = {}  # in order, each folder once however it is named
    for path in map(Path, paths):
        if (path / EVENTS).is_file():
            found.setdefault(path.resolve(), path)
            continue
        inside = sorted(events.parent for events in path.glob(f"*/{EVENTS}"))
        if not inside:
            state = "is empty of runs" if path.is_dir() else "does not exist"
            raise FileNotFoundError(
                f"{path} {state}; expected a run directory (with {EVENTS}) or a folder of them"
            )
        for folder in inside:
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("run_dirs is empty; expected at least one run directory")
    return list(found.values())


def _name_apart(runs: Sequence[Run]) -> None:
    """Name each run by as many parts of its path as tell it from the others."""
    parts = {id(run): run.path.resolve().parts for run in runs}
    for run in runs:
        others = [own for key, own in parts.items() if key != id(run)]
        mine = parts[id(run)]
        count = next(
            (n for n in range(1, len(mine)) if not any(o[-n:] == mine[-n:] for o in others)), 1
        )
        run.name = "/".join(mine[-count:])


def load_all(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in these directories. What cannot be read, of them or in them, is named in the log,
    and the others go on. ValueError where none can be read.
    """
    paths, runs = list(map(Path, paths)), []
    for path in paths:
        try:
            run = Run.load(path)
            _check_settings(path, run)
        except OSError as error:
            logger.warning("left out: %s: %s", error.filename or path, error.strerror or error)
            continue
        except ValueError as error:
            logger.warning("left out: %s", error)
            continue
        if run.unreadable:
            lines = f"{run.unreadable} line{'s' * (run.unreadable > 1)}"
            logger.warning("%s: %s cannot be read and left out", path / EVENTS, lines)
        runs.append(run)
    if paths and not runs:
        raise ValueError(f"runs: got {len(paths)}, but none of them can be read")
    _name_apart(runs)
    return runs


def _check_settings(path: Path, run: Run) -> None:
    """ValueError where config.yaml is damaged: what may such a run be compared with?"""
    if (path / "config.yaml").is_file():
        found = strict_yaml.parse(run.config, str(path / "config.yaml"))
        if not isinstance(found, dict):
            raise ValueError(f"{path / 'config.yaml'}: holds no settings")


def _events(lines: Iterable[str], run: Run) -> Iterator[dict]:
    for line in lines:
        line = line.strip()
        if not line:
            continue
        event = _parse(line)
        if event is None:
            run.unreadable += 1
            # A run killed mid-line and resumed goes on behind the torn text: rescue that event.
            event = _parse(line[max(line.rfind('{"type"'), 0) :])
        if event is not None:
            yield event


def _parse(text: str) -> dict | None:
    try:
        event = json.loads(text)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _list(value: object, *kinds: type) -> list:
    if not isinstance(value, list) or not all(isinstance(item, kinds) for item in value):
        raise TypeError
    return value


def _start(run: Run, event: dict) -> None:
    tasks, held_out = _list(event.get("tasks") or [], str), event.get("held_out") or {}
    texts = [event.get(name) or "" for name in ("policy", "label", "model", "device")]
    if not all(isinstance(text, str) for text in texts) or not isinstance(held_out, dict):
        raise TypeError
    run.policy = texts[0] or run.policy
    run.label = texts[1] or run.policy
    run.ratio = _number(event.get("ratio"))
    run.seed = event.get("seed")
    run.tasks, run.model, run.device = tasks, texts[2], texts[3]
    run.held_out = held_out  # optional; else the config says it
    run.end = None  # resumed


def _selection(run: Run, event: dict) -> None:
    selected = [bool(flag) for flag in event.get("selected") or ()]
    index = event.get("batch", len(run.batches))
    relative = event.get("relative")
    batch = Batch(
        index=index,
        task=_list(event.get("task") or [None] * len(selected), int, type(None)),
        selected=selected,
        relative=None if relative is None else _list(relative, float, int, type(None)),
        threshold=_number(event.get("threshold")),
        seconds=_number(event.get("seconds")) or 0.0,
        skipped=int(event.get("skipped") or 0),
    )
    while run.batches and run.batches[-1].index >= index:  # a resumed run repeats these
        run.batches.pop()
    run.batches.append(batch)


def _step(run: Run, event: dict) -> None:
    run.steps[int(event.get("step", len(run.steps)))] = _number(event.get("seconds")) or 0.0


def _evaluation(run: Run, event: dict) -> None:
    after_task = int(event.get("after_task", -1))
    accuracy = {name: _number(value) for name, value in (event.get("accuracy") or {}).items()}
    while run.evaluations and run.evaluations[-1].after_task >= after_task:
        run.evaluations.pop()
    run.evaluations.append(
        Evaluation(
            after_task=after_task,
            accuracy={name: value for name, value in accuracy.items() if value is not None},
            seconds=_number(event.get("seconds")) or 0.0,
            candidates=run.candidates,
            seconds_before=run.score_seconds + run.train_seconds,
        )
    )


def _end(run: Run, event: dict) -> None:
    run.end = event


def _ignore(run: Run, event: dict) -> None:
    """Event types of later versions pass by."""


_READERS = {
    "start": _start,
    "selection": _selection,
    "step": _step,
    "evaluation": _evaluation,
    "end": _end,
}
