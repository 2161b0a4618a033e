"""Tables of a page: held-out losses, and which samples were picked, and why others were not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from oasis.lab.metrics import perplexity
from oasis.lab.report.runs import Batch, Run

SHOWN = 60  # samples of each kind, of all tasks of a run together
FEWEST = 5  # of each task
ALL = 200  # samples of a run that are all shown
MOST, LEAST, REDUNDANT = "most informative", "least informative", "redundant"


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
class Twin:
    """The pick that a sample was redundant with: its key and text, the cosine of the gradients, and
    the share of the sample's informativeness that was taken off.
    """

    key: str
    text: str
    cosine: float
    shared: float


@dataclass
class Sample:
    """A candidate: where it comes from, how it begins, its largest z, how often it was met and
    selected; the pick most like it, where it was left out as redundant. `kinds` of `MOST`, `LEAST`
    and `REDUNDANT` that it is one of.
    """

    run: str
    key: str
    task: str
    text: str
    z: float
    met: int = 0
    selected: int = 0
    twin: Twin | None = None
    why: str = ""  # it was left out, where more is known than that
    kinds: list[str] = field(default_factory=list)


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


def samples(runs: Sequence[Run]) -> list[Sample]:
    """Of each run whose record has keys and scores, the candidates by falling z: all of them, or
    where there are many of each task the most and the least informative, and those that were most
    like a pick.
    """
    return [sample for run in runs for sample in ends(_samples(run))]


def ends(found: Sequence[Sample]) -> list[Sample]:
    """Those of a run's samples that are shown, with their `kinds`, by falling z."""
    ranked = sorted(found, key=lambda sample: (-sample.z, sample.key))
    tasks: dict[str, list[Sample]] = {}
    for sample in ranked:
        tasks.setdefault(sample.task, []).append(sample)
    most = max(SHOWN // max(1, len(tasks)), FEWEST)
    for own in tasks.values():
        count = min(most, len(own) // 2 or 1)
        pairs = [(-abs(s.twin.cosine), s) for s in own if s.twin]
        twins = [s for _, s in sorted(pairs, key=lambda pair: pair[0])]
        for kind, part in (
            (MOST, own[:count]),
            (LEAST, own[len(own) - count :]),
            (REDUNDANT, twins if len(ranked) <= ALL else twins[:most]),
        ):
            for sample in part:
                sample.kinds.append(kind)
    return ranked if len(ranked) <= ALL else [sample for sample in ranked if sample.kinds]


def _samples(run: Run) -> list[Sample]:
    found: dict[str, Sample] = {}
    for batch in run.batches:
        for place, score in enumerate(batch.relative or ()):
            if place >= len(batch.keys):
                break
            if place in batch.unscored:
                continue
            key = batch.keys[place]
            sample = found.get(key)
            if sample is None:
                sample = Sample(run.name, key, _task(run, batch, place), run.texts.get(key, ""),
                                -math.inf)  # fmt: skip
                found[key] = sample
            sample.met += 1
            sample.selected += batch.selected[place]
            sample.z = max(sample.z, -math.inf if score is None else score)
            twin = _twin(run, batch, place)
            if twin and (sample.twin is None or abs(twin.cosine) > abs(sample.twin.cosine)):
                sample.twin = twin
    return [sample for sample in found.values() if sample.z > -math.inf]


def _task(run: Run, batch: Batch, place: int) -> str:
    number = batch.task[place]
    if number is None or not 0 <= number < len(run.tasks):
        return ""
    return run.tasks[number]


def _twin(run: Run, batch: Batch, place: int) -> Twin | None:
    if place >= len(batch.redundant) or (found := batch.redundant[place]) is None:
        return None
    pick, cosine, shared = found
    if not 0 <= pick < len(batch.keys):
        return None
    key = batch.keys[pick]
    return Twin(key, run.texts.get(key, ""), cosine, shared)


def columns(found: Sequence[Sample]) -> Iterator[str]:
    """Which of the columns "run" and "task" say something of these samples."""
    for name in ("run", "task"):
        if len({getattr(sample, name) for sample in found}) > 1:
            yield name
