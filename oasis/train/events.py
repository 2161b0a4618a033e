"""The counts of a run with selection, and the events it reports (JSON, no NaN)."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oasis import Selection
from oasis.policies import Policy, Signals
from oasis.train.reasons import Redundant, redundant

DRY = 100  # candidate batches with samples but without a selection, after which to say so
LOOK = 50  # candidate batches after which it is seen whether selected answers are short


def label_tokens(signals: Signals) -> Tensor:
    """[N] int64, label tokens of the candidates."""
    assert signals.tokens is not None  # the trainer gives them to every policy
    return signals.tokens


def trainable(selection: Selection, signals: Signals) -> Tensor:
    """[N] bool on the CPU: candidates with a label token that were not skipped."""
    return (label_tokens(signals) > 0).cpu() & ~selection.skipped.cpu()


@dataclass
class Counts:
    """Totals over the stream, as seen by this process; they travel with the checkpoints."""

    batches: int = 0
    candidates: int = 0
    selected: int = 0
    skipped: int = 0  # non-finite samples
    candidate_tokens: int = 0  # label tokens
    selected_tokens: int = 0

    def add(self, selection: Selection, signals: Signals) -> None:
        """Account for one candidate batch. Candidates are samples with a label token, less the
        skipped ones.
        """
        self.batches += 1
        self.skipped += int(selection.skipped.sum())
        self.selected += int(selection.mask.sum())
        candidates, tokens = trainable(selection, signals), label_tokens(signals).cpu()
        self.candidates += int(candidates.sum())
        self.candidate_tokens += int(tokens[candidates].sum())
        self.selected_tokens += int(tokens[selection.mask.cpu()].sum())

    @property
    def ratio(self) -> float:
        """Selected over candidates so far; 0 before the first batch."""
        return self.selected / self.candidates if self.candidates else 0.0


def moment(device: torch.device) -> float | torch.cuda.Event:
    """Now, as the device sees it: on a GPU, when it will have done what it has been given."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    """Waits, on a GPU, for the end."""
    if isinstance(start, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    assert isinstance(end, float)
    return end - start


@dataclass
class Shares:
    """What selecting takes of the time, and padding of the positions of candidate batches."""

    seconds: float = 0.0
    scoring: float = 0.0  # seconds of these
    positions: int = 0
    padding: int = 0  # of these

    def add(self, other: Shares) -> None:
        """Take in what another counted."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def scoring_share(self) -> float:
        return self.scoring / self.seconds if self.seconds else 0.0

    @property
    def padding_share(self) -> float:
        return self.padding / self.positions if self.positions else 0.0


@dataclass
class StepState:
    """What happens between two optimizer steps, and between two logs."""

    samples: int = 0
    tokens: int = 0
    trains: bool = False  # whether anything was selected, on any rank
    loss: Tensor | float = 0.0
    started: float = 0.0
    micro_batches: int = 1  # of this process that have something to train on, at least 1
    process_factor: float = 1.0  # processes per process that has something to train on
    steps: int = 0  # since the last log
    trained: int = 0  # those of them that trained
    all_steps: int = 0  # since the training began
    all_trained: int = 0
    unselected: int = 0  # candidate batches in a row of which nothing was selected
    last_loss: float | None = None
    tasks: Counter = field(default_factory=Counter)
    began: float = 0.0  # before its candidates were fetched; `started`: after they were chosen from
    shares: Shares = field(default_factory=Shares)  # of this step
    all_shares: Shares = field(default_factory=Shares)  # since the last log

    def begin(self) -> None:
        """Candidates are about to be fetched."""
        self.tasks.clear()
        self.began, self.shares = time.perf_counter(), Shares()

    def start(self, samples: int, tokens: list[int], training: int, processes: int) -> None:
        """A step of micro-batches with so many label tokens each begins, and `training` of the
        processes have some.
        """
        self.samples, self.tokens, self.loss = samples, sum(tokens), 0.0
        self.micro_batches = max(1, sum(number > 0 for number in tokens))
        self.trains, self.process_factor = training > 0, processes / max(1, training)
        self.started = time.perf_counter()

    def end(self) -> None:
        """The step is over."""
        self.shares.seconds = time.perf_counter() - self.began
        self.all_shares.add(self.shares)
        self.steps, self.all_steps = self.steps + 1, self.all_steps + 1
        self.trained += self.trains
        self.all_trained += self.trains

    def is_dry(self, selection: Selection, signals: Signals) -> bool:
        """Whether with this candidate batch nothing was selected of `DRY` of them in a row."""
        if selection.mask.any():
            self.unselected = 0
        elif trainable(selection, signals).any():
            self.unselected += 1
        return self.unselected > 0 and self.unselected % DRY == 0

    def anew(self) -> None:
        """As before any training."""
        vars(self).update(vars(StepState()))


def statistics(policy: Policy) -> dict[str, float]:
    """Those of "threshold", "mean" and "deviation" that the policy has and that are finite."""
    values = getattr(policy, "statistics", dict)()
    return {name: value for name, value in values.items() if math.isfinite(value)}


def selection_event(
    selection: Selection,
    signals: Signals,
    task: Tensor | None,
    item: Tensor | None,
    known: dict[str, float],
) -> dict:
    """One candidate batch; `known` is what `statistics` of the policy said after it."""
    twins = redundant(selection, signals)
    return {
        "type": "selection",
        "task": None if task is None else task.tolist(),
        "item": None if item is None else item.tolist(),
        "selected": selection.mask.tolist(),
        "informativeness": _numbers(selection.informativeness),
        "relative": _numbers(selection.relative),
        "probability": _numbers(selection.probability),
        "threshold": known.get("threshold"),
        "mean": known.get("mean"),
        "deviation": known.get("deviation"),
        "tokens": int(label_tokens(signals).sum()),
        "skipped": int(selection.skipped.sum()),
        "redundant": None if twins is None else [_twin(twin) for twin in twins],
    }


def _twin(twin: Redundant | None) -> list | None:
    if twin is None:
        return None
    return [twin.pick, round(twin.cosine, 4), round(twin.shared, 4)]


def step_event(step: StepState, number: int) -> dict:
    """One optimizer step of this process, `number` counted from 1."""
    return {
        "type": "step",
        "step": number,
        "loss": _number(float(step.loss)) if step.tokens else None,
        "seconds": time.perf_counter() - step.started,
        "score_seconds": step.shares.scoring,
        "padding_share": step.shares.padding_share,
        "samples": step.samples,
        "tokens": step.tokens,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(values: Tensor | None) -> list[float | None] | None:
    return None if values is None else [_number(value) for value in values.tolist()]
