"""What came out of a run, summed up from its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from oasis.lab.config import RunConfig
from oasis.lab.record.accuracy import a_avg, a_last
from oasis.lab.record.events import End, Event


@dataclass
class RunResult:
    """Outcome of a run. `seconds` is wall-clock time without loading and zero-shot evaluation.

    `history[k]` holds the accuracies at the end of task k, `losses` the held-out losses of the
    tasks in free text before training and at the end of each task. `trained`: samples of the
    optimizer steps, fewer than `selected` where with mode "fill" some still waited at the end.
    `forward_seconds` is the mean time of a plain forward with loss of one candidate batch, None
    where it was not measured. A run that was stopped early is not `finished` and has None for
    `a_last`, `a_avg` and `loss` (the mean over the tasks in free text of the held-out loss at the
    end, None where there are none).
    """

    directory: Path
    policy: str
    finished: bool
    steps: int
    zero_shot: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    losses: list[dict[str, float]] = field(default_factory=list)
    a_last: float | None = None
    a_avg: float | None = None
    loss: float | None = None
    candidates: int = 0
    selected: int = 0
    trained: int = 0
    seconds: float = 0.0
    score_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    forward_seconds: float | None = None

    @property
    def ratio(self) -> float:
        """Selected over candidates, as it came out."""
        return self.selected / self.candidates if self.candidates else 0.0


def end_of(tasks: Sequence[str], events: Sequence[Event], sums: Mapping[str, Any]) -> End:
    """The last event of a run on `tasks` whose record is `events`."""
    history = _history(events)
    losses = _losses(events)[-1]
    return {
        "type": "end",
        "a_last": a_last(history, tasks),
        "a_avg": a_avg(history, tasks),
        "loss": sum(losses.values()) / len(losses) if losses else None,
        "candidates": sums["candidates"],
        "selected": sums["selected"],
        "seconds": sums["seconds"],
        **_parts(events),
        "forward_seconds": sums["forward_seconds"],
    }


def result_of(config: RunConfig, events: Sequence[Event], **sums: Any) -> RunResult:
    """Sum up a record; `sums` are what it does not say while it has no end."""
    end = dict(events[-1]) if events[-1]["type"] == "end" else {}
    names = {spec.name for spec in dataclasses.fields(RunResult)}
    return RunResult(
        directory=config.directory,
        policy=config.policy,
        finished=bool(end),
        steps=sum(event["type"] == "step" for event in events),
        zero_shot=_accuracies(events)[-1],
        history=_history(events),
        losses=_losses(events),
        trained=sum(event["samples"] for event in events if event["type"] == "step"),
        **{**_parts(events), **sums, **{k: v for k, v in end.items() if k in names}},
    )


def _history(events: Sequence[Event]) -> list[dict[str, float]]:
    evaluations = _accuracies(events)
    return [evaluations[k] for k in sorted(evaluations) if k >= 0]


def _accuracies(events: Sequence[Event]) -> dict[int, dict[str, float]]:
    """By the task after which they were measured, -1 before training."""
    return {
        event["after_task"]: {k: v for k, v in event["accuracy"].items() if v is not None}
        for event in events
        if event["type"] == "evaluation"
    }


def _losses(events: Sequence[Event]) -> list[dict[str, float]]:
    """Held-out losses before training and at the end of each task."""
    found = {
        event["after_task"]: {k: v for k, v in event.get("loss", {}).items() if v is not None}
        for event in events
        if event["type"] == "evaluation"
    }
    return [found[k] for k in sorted(found)]


class _Parts(TypedDict):
    score_seconds: float
    train_seconds: float
    evaluation_seconds: float


def _parts(events: Sequence[Event]) -> _Parts:
    return {
        "score_seconds": spent(events, "selection"),
        "train_seconds": spent(events, "step"),
        "evaluation_seconds": spent(events, "evaluation"),
    }


def spent(events: Sequence[Event], *kinds: str) -> float:
    """Seconds that events (of `kinds`, or all) took; not the zero-shot evaluation, which is shared
    among the runs of a workspace."""
    return sum(
        event["seconds"]
        for event in events
        if event["type"] != "start"
        and event["type"] != "end"
        and (not kinds or event["type"] in kinds)
        and not (event["type"] == "evaluation" and event["after_task"] == -1)
    )
