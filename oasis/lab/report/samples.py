"""Tables of a page: held-out losses, and which samples were most and least informative."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oasis.lab.metrics import perplexity
from oasis.lab.report.runs import Run

SHOWN = 10  # samples at each end


@dataclass(frozen=True)
class Loss:
    """Held-out loss of a task of a run, in nats per label token: before training and last."""

    run: str
    task: str
    before: float | None
    last: float

    @property
    def perplexity(self) -> float:
        return perplexity(self.last)


@dataclass(frozen=True)
class Sample:
    """A candidate: where it comes from, its largest z, how often it was met and selected."""

    key: str
    z: float
    met: int
    selected: int


def losses(runs: Sequence[Run]) -> list[Loss]:
    """One line for each task in free text of each run."""
    found = []
    for run in runs:
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        for evaluation in run.evaluations:
            if evaluation.after_task < 0:
                first = evaluation.loss
            last = {**last, **evaluation.loss}
        found += [Loss(run.name, task, first.get(task), value) for task, value in last.items()]
    return found


def samples(runs: Sequence[Run]) -> list[tuple[str, list[Sample], list[Sample]]]:
    """Of each run whose record has keys and scores: its name, the most informative candidates
    first, the least informative ones first.
    """
    found = []
    for run in runs:
        ranked = sorted(_samples(run), key=lambda sample: (-sample.z, sample.key))
        if ranked:
            shown = min(SHOWN, len(ranked) // 2 or 1)
            found.append((run.name, ranked[:shown], ranked[: -shown - 1 : -1]))
    return found


def _samples(run: Run) -> Iterator[Sample]:
    z: dict[str, float] = {}
    met: dict[str, int] = {}
    selected: dict[str, int] = {}
    for batch in run.batches:
        scores = batch.relative or [None] * len(batch.keys)
        for key, score, kept in zip(batch.keys, scores, batch.selected, strict=False):
            met[key] = met.get(key, 0) + 1
            selected[key] = selected.get(key, 0) + kept
            if score is not None:
                z[key] = max(score, z.get(key, -math.inf))
    for key, score in z.items():
        yield Sample(key, score, met[key], selected[key])
