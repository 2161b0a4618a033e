"""Run directories as plain dataclasses: `config.yaml` beside `events.jsonl`, one object per line.

A run may still be in progress, may have been killed in the middle of a line, and may have been
resumed (which repeats the events after its last checkpoint). All three read as what they are:
unreadable text is counted, repeated batches replace the ones written before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from oasis.lab import strict_yaml
from oasis.lab.record import accuracy, events
from oasis.lab.record.log import CONFIG, EVENTS, read


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
    keys: list[str] = field(default_factory=list)  # where each comes from, where the record says it
    # Why it was left out: (place of the pick that it is redundant with, cosine, share taken off).
    redundant: list[tuple[int, float, float] | None] = field(default_factory=list)
    # Places of rows that had been scored before, and were no candidates this time.
    unscored: frozenset[int] = frozenset()

    @property
    def num_candidates(self) -> int:
        return len(self.selected) - len(self.unscored)

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
    loss: dict[str, float] = field(default_factory=dict)  # held-out, of tasks in free text, in nats
    answers: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # [right, all] of each


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
    # Within tasks: (candidates seen, held-out accuracy by task name).
    probes: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    steps: dict[int, float] = field(default_factory=dict)  # step -> seconds of training
    losses: dict[int, float] = field(default_factory=dict)  # step -> training loss, if any
    texts: dict[str, str] = field(default_factory=dict)  # key -> how the sample begins
    answers: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # in training examples, by task
    end: events.End | None = None  # the end event; None while in progress
    unreadable: int = 0  # lines that are no event, e.g. the one a kill cut short
    config: str = ""  # text of config.yaml

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read one run directory. FileNotFoundError if it has no events.jsonl, ValueError where
        that is empty or of a later version.
        """
        path = Path(path)
        if not (path / EVENTS).is_file():
            raise FileNotFoundError(f"run directory {path} has no {EVENTS}")
        run = cls(path=path, policy=path.name, name=path.name)
        config = path / CONFIG
        if config.is_file():
            run.config = config.read_text(encoding="utf-8", errors="replace")
        record = read(path / EVENTS)
        run.unreadable = len(record.damage)
        for event in record.events:
            _add(run, event)
        run.label = run.label or run.policy
        size = run.settings.get("held_out")
        if not run.held_out and isinstance(size, int) and size > 0:
            run.held_out = dict.fromkeys(run.tasks, size)
        return run

    @cached_property
    def settings(self) -> dict:
        """What config.yaml says; empty where it is missing or damaged."""
        try:
            settings = strict_yaml.parse(self.config, CONFIG)
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
            rows = zip(batch.task, batch.selected, strict=False)
            for place, (task, selected) in enumerate(rows):
                if place in batch.unscored:
                    continue
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
        return self.end["seconds"] if self.end is not None else parts

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
            mean = accuracy.a_last([evaluation.accuracy], seen)
            if mean is not None:
                points.append((evaluation.candidates, mean))
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
        found = [*((e.candidates, e.accuracy) for e in self.evaluations), *self.probes]
        known = [(seen, accuracy[name]) for seen, accuracy in found if name in accuracy]
        return sorted(known, key=lambda point: point[0])

    @property
    def at_the_end(self) -> dict[str, float]:
        """Accuracies after the last task; empty until then."""
        last = self.evaluations[-1] if self.evaluations else None
        return last.accuracy if last and last.after_task == len(self.tasks) - 1 >= 0 else {}

    @property
    def a_last(self) -> float | None:
        """Mean accuracy over all tasks after the last one (docs/method.md 6); None until then."""
        if self.at_the_end:
            return accuracy.a_last([self.at_the_end], self.tasks)
        return self.end.get("a_last") if self.end is not None else None

    @property
    def chance(self) -> float | None:
        """Mean over the tasks of one over the number of answers that occur among held-out examples;
        None where the record does not say it of every task.
        """
        answers = self.evaluations[-1].answers if self.evaluations else {}
        if not self.tasks or not all(answers.get(task) for task in self.tasks):
            return None
        return sum(1 / len(answers[task]) for task in self.tasks) / len(self.tasks)

    def a_last_by(self, average: str) -> float | None:
        """A_last by "macro" (mean over the answers) or "micro" (share of the examples) accuracy;
        None where the record does not say it.
        """
        if self.settings.get("accuracy", "micro") == average:
            return self.a_last
        last = self.evaluations[-1] if self.at_the_end else None
        if last is None or not last.answers:
            return None
        by = {
            task: accuracy.accuracy_of(answers, average, self.answers.get(task))
            for task, answers in last.answers.items()
        }
        return accuracy.a_last([{**last.accuracy, **by}], self.tasks)

    @property
    def a_avg(self) -> float | None:
        """Mean over task boundaries (so far) of the mean accuracy over tasks seen so far."""
        points = [value for _, value in self.seen_accuracy()]
        if not points:
            return self.end.get("a_avg") if self.end is not None else None
        return sum(points) / len(points)

    @property
    def standard_error(self) -> float | None:
        """Of A_last, by the held-out examples alone; None where it is not known how many there are,
        before the end, and for macro accuracy, which rests on how many examples each answer has.
        """
        measured = self.at_the_end
        known = measured and all(name in self.held_out for name in measured)
        if not known or self.settings.get("accuracy") == "macro":
            return None
        return accuracy.standard_error(measured, self.held_out)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _start(run: Run, event: events.Start) -> None:
    run.policy, run.label = event["policy"], event.get("label") or event["policy"]
    run.ratio, run.seed = event["ratio"], event["seed"]
    run.tasks, run.model, run.device = event["tasks"], event["model"], event["device"]
    run.held_out = event.get("held_out", {})  # in version 1 the config says it
    run.answers = event.get("answers", {})
    run.end = None  # resumed


def _selection(run: Run, event: events.Selection) -> None:
    selected = event["selected"]
    batch = Batch(
        index=event["batch"],
        task=event["task"] or [None] * len(selected),
        selected=selected,
        relative=event["relative"],
        threshold=event["threshold"],
        seconds=event["seconds"],
        skipped=event["skipped"],
        keys=event.get("key", []),
        redundant=event.get("redundant") or [],
        unscored=frozenset(event.get("unscored", ())),
    )
    run.texts |= {k: t for k, t in zip(batch.keys, event.get("text", ()), strict=False) if t}
    while run.batches and run.batches[-1].index >= batch.index:  # a resumed run repeats these
        run.batches.pop()
    run.batches.append(batch)


def _step(run: Run, event: events.Step) -> None:
    run.steps[event["step"]] = event["seconds"]
    if event["loss"] is not None:
        run.losses[event["step"]] = event["loss"]


def _evaluation(run: Run, event: events.Evaluation) -> None:
    while run.evaluations and run.evaluations[-1].after_task >= event["after_task"]:
        run.evaluations.pop()
    run.evaluations.append(
        Evaluation(
            after_task=event["after_task"],
            accuracy=_known(event["accuracy"]),
            seconds=event["seconds"],
            loss=_known(event.get("loss", {})),
            answers=event.get("answers", {}),
            candidates=run.candidates,
            seconds_before=run.score_seconds + run.train_seconds,
        )
    )


def _add(run: Run, event: events.Event) -> None:
    if event["type"] == "start":
        _start(run, event)
    elif event["type"] == "selection":
        _selection(run, event)
    elif event["type"] == "step":
        _step(run, event)
    elif event["type"] == "evaluation":
        _evaluation(run, event)
    elif event["type"] == "probe":
        while run.probes and run.probes[-1][0] >= run.candidates:  # a resumed run repeats these
            run.probes.pop()
        run.probes.append((run.candidates, _known(event["accuracy"])))
    elif event["type"] == "end":
        run.end = event
