"""One training run: stream, selection, evaluation at the task boundaries, record on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import TrainerCallback

from oasis import policies
from oasis.lab import log_lines, strict_yaml
from oasis.lab.accounts import accounts
from oasis.lab.config import RunConfig, difference
from oasis.lab.data.shown import Labels
from oasis.lab.record.checkpoints import (
    Checkpoint,
    Checkpoints,
    clean,
    erase,
    save_adapter,
)
from oasis.lab.record.events import VERSION, Evaluation, Measures, Number
from oasis.lab.record.lock import locked, refuse_busy
from oasis.lab.record.log import ADAPTER, CONFIG, EVENTS, EventLog, end_event, read_events
from oasis.lab.record.result import RunResult, end_of, result_of, spent
from oasis.lab.trainer import Prepared, prepare, trainer_of
from oasis.lab.workspace import Measured, Workspace
from oasis.train.models import forward_parameters


class Boundaries(TrainerCallback):
    """Evaluates at the task boundaries, ties checkpoints to the record, stops where asked."""

    def __init__(
        self,
        config: RunConfig,
        workspace: Workspace,
        boundaries: list[int],
        checkpoints: Checkpoints,
        log: EventLog,
        progress: bool,
    ) -> None:
        self.config = config
        self.workspace = workspace
        self.boundaries = boundaries
        self.checkpoints = checkpoints
        self.log = log
        self.progress = progress

    def evaluate(self, model: nn.Module, step: int, after_task: int) -> None:
        seen = slice(None) if self.config.evaluate == "all" else slice(after_task + 1)
        last = after_task == len(self.boundaries) - 1
        held_out = None if last else self.config.boundary_held_out
        found, seconds = self._measure(model, seen, held_out)
        self.log.write(_evaluation(step, after_task, found, seconds))
        if self.progress:
            tqdm.write(f"after {self.workspace.names[after_task]}: {in_words(found)}")

    def evaluate_early(self, model: nn.Module) -> None:
        """A first task too short for a batch ends before any training."""
        for index in range(self.boundaries.count(0)):
            self.evaluate(model, 0, index)

    def probe(self, model: nn.Module, step: int) -> None:
        found, seconds = self._measure(model, slice(None), self.config.boundary_held_out)
        self.log.write({"type": "probe", "step": step, **_measures(found), "seconds": seconds})
        if self.progress:
            tqdm.write(f"after step {step}: {in_words(found)}")

    def _measure(
        self, model: nn.Module, tasks: slice, held_out: int | None
    ) -> tuple[dict[str, Measured], float]:
        """How good the model is at some of the tasks, and the seconds that it took to know."""
        start = time.perf_counter()
        found = {
            task.name: self.workspace.measure(model, task, held_out)
            for task in self.workspace.tasks[tasks]
        }
        return found, time.perf_counter() - start

    def on_step_end(self, args, state, control, *, model: nn.Module, **kwargs):
        for index, boundary in enumerate(self.boundaries):
            if boundary == state.global_step:
                self.evaluate(model, boundary, index)
        if state.global_step in self.config.probes and state.global_step not in self.boundaries:
            self.probe(model, state.global_step)
        if self.config.stop_after and state.global_step >= self.config.stop_after:
            control.should_save = control.should_training_stop = True
        elif self.config.save_steps and state.global_step % self.config.save_steps == 0:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        self.checkpoints.add(state.global_step, self.log)


def _evaluation(
    step: int, after_task: int, found: Mapping[str, Measured], seconds: float
) -> Evaluation:
    return {
        "type": "evaluation",
        "step": step,
        "after_task": after_task,
        **_measures(found),
        "seconds": seconds,
    }


def _measures(found: Mapping[str, Measured]) -> Measures:
    """Accuracies, and beside them held-out losses where there are tasks in free text."""
    measures: Measures = {
        "accuracy": {n: one.accuracy for n, one in found.items() if one.accuracy is not None}
    }
    answers = {
        name: {answer: list(counts) for answer, counts in one.answers.items()}
        for name, one in found.items()
        if one.answers is not None
    }
    if answers:
        measures["answers"] = answers
    loss: dict[str, Number] = {n: one.loss for n, one in found.items() if one.loss is not None}
    if loss:
        measures["loss"] = loss
    return measures


def in_words(found: Mapping[str, Measured]) -> str:
    """How good a model is, by task, in words."""
    return (
        ", ".join(f"{name} {one}" for name, one in found.items() if str(one)) or "no held-out rows"
    )


def run(
    config: RunConfig, *, progress: bool = True, workspace: Workspace | None = None
) -> RunResult:
    """Train as `config` says and write the run directory `config.directory`.

    `progress` shows the Trainer's bar and log lines. `workspace` shares the loaded model, the tasks
    and the zero-shot accuracies among several runs; its model has no LoRA left on it afterwards.
    An existing run of the same name is replaced, unless `config.resume` goes on with it. Raises
    Busy (an OSError) where another run is going on in the directory.
    """
    # Before anything is downloaded: options that the policy refuses, a folder that is in use.
    policy = policies.create(config.policy, config.ratio, config.seed, **config.policy_options)
    refuse_busy(config.directory)
    _refuse_foreign(config.directory)
    if workspace is None:
        workspace = Workspace(config)
    workspace.check(config)
    if progress:
        for line in workspace.said:
            tqdm.write(line)
    prepared = prepare(config, workspace, policy, progress)
    with locked(config.directory):
        clean(config.directory)  # of what a kill left
        try:
            return _run(config, policy, workspace, prepared, progress)
        finally:
            with suppress(OSError):
                clean(config.directory)


def _run(
    config: RunConfig,
    policy: policies.Policy,
    workspace: Workspace,
    prepared: Prepared,
    progress: bool,
) -> RunResult:
    directory = config.directory
    steps, boundaries = prepared.plan.steps, prepared.plan.boundaries
    if config.resume and end_event(directory / EVENTS) is not None:
        _refuse_changed(config)
        return result_of(config, read_events(directory / EVENTS))
    checkpoints = Checkpoints(directory)
    checkpoint = _prepare(config, checkpoints)
    offset = checkpoint.record if checkpoint else 0
    before = read_events(directory / EVENTS, offset) if offset else []
    if not offset:
        workspace.zero_shot()  # before there are weights to train on the model
    with closing(EventLog(directory / EVENTS, offset)) as log, workspace.lora(config) as model:
        started = time.perf_counter()
        callback = Boundaries(config, workspace, boundaries, checkpoints, log, progress)
        if not offset:
            _start(config, workspace, boundaries, log)
            callback.evaluate_early(model)
        else:
            _refuse_other_data(config, workspace, directory)
        on_event = _recorder(log, Labels(workspace.items, workspace.tokenizer, before))
        what = prepared.stream, prepared.arguments
        trainer = trainer_of(config, workspace, model, policy, *what, on_event)
        trainer.add_callback(callback)
        log_lines.install(trainer, progress)
        if checkpoint and checkpoint.step >= min(steps, config.stop_after or steps):
            trainer.restore(str(checkpoint.folder))
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None)
        counts = trainer.selection_counts
        sums: dict[str, float | None] = dict(candidates=counts.candidates, selected=counts.selected)
        sums["seconds"] = spent(before) + time.perf_counter() - started
        if trainer.state.global_step == steps:
            sums["forward_seconds"] = _forward_seconds(config, workspace, model)
            save_adapter(model, directory)
            record = read_events(directory / EVENTS)
            log.write(
                {**end_of(workspace.names, record, sums),
                 **accounts(record, workspace, model, policy, config, trainer.score_with)}
            )  # fmt: skip
            log.sync()
        return result_of(config, read_events(directory / EVENTS), **sums)


def _refuse_foreign(directory: Path) -> None:
    """A run has a record from its first moment on; without one, these are something else's."""
    for name in (CONFIG, ADAPTER):
        if (directory / name).exists() and not (directory / EVENTS).exists():
            raise ValueError(
                f"{directory / name}: no run wrote it ({EVENTS} is not there); use another name"
            )


def _prepare(config: RunConfig, checkpoints: Checkpoints) -> Checkpoint | None:
    """Make the run directory ready; the checkpoint to resume from, if any."""
    checkpoint = checkpoints.last() if config.resume else None
    if checkpoint is None:
        erase(config.directory)
        checkpoints.found.clear()
        config.replace(resume=False).save(config.directory / CONFIG)
    else:
        _refuse_changed(config)
    return checkpoint


def saved_settings(directory: Path) -> dict[str, Any]:
    """What the config.yaml of a run says. ValueError naming it where it is damaged or missing."""
    path = directory / CONFIG
    try:
        settings = strict_yaml.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: holds no settings")
    return settings


def _refuse_changed(config: RunConfig) -> None:
    """ValueError where the run to be resumed was started with other settings."""
    saved = saved_settings(config.directory)
    if found := difference(config, saved):
        name, value, before = found
        raise ValueError(
            f"{name}: got {value!r}, but the run to be resumed in {config.directory} has "
            f"{before!r}; use another name, or resume=false to start anew"
        )


def _refuse_other_data(config: RunConfig, workspace: Workspace, directory: Path) -> None:
    """ValueError where the rows are not those that the run to be resumed was started with."""
    first = read_events(directory / EVENTS)[0]
    if first.get("data") != workspace.digest:
        raise ValueError(
            f"data: the rows are not those that the run in {directory} was started with; use "
            "another name, or resume=false to start anew"
        )


def _recorder(log: EventLog, labels: Labels) -> Callable[[dict], None]:
    return lambda event: log.write(labels(event))


def _start(config: RunConfig, workspace: Workspace, boundaries: list[int], log: EventLog) -> None:
    """The events before training."""
    data = {} if workspace.digest is None else {"data": workspace.digest, "rows": workspace.said}
    if counts := workspace.answer_counts():
        data["answers"] = counts
    ratio = 1.0 if config.policy == "full" else config.ratio
    log.write(
        {
            "type": "start",
            "version": VERSION,
            "policy": config.policy,
            "label": config.label or config.policy,
            "ratio": ratio,
            "seed": config.seed,
            "tasks": workspace.names,
            **data,
            "boundaries": boundaries,
            "held_out": {task.name: len(task.test) for task in workspace.tasks},
            "model": config.model,
            "device": str(workspace.device),
        }
    )
    log.write(_evaluation(0, -1, workspace.zero_shot(), workspace.zero_shot_seconds))


@torch.no_grad()
def _forward_seconds(config: RunConfig, workspace: Workspace, model: nn.Module) -> float | None:
    """Mean time of a plain forward with loss over the first `forward_batches` candidate batches."""
    if not config.forward_batches:
        return None
    model.eval()
    batches, known = [], forward_parameters(model)
    for items in islice(workspace.stream(config).batches(), config.forward_batches):
        batch = workspace.collator(items)
        batches.append({k: value.to(workspace.device) for k, value in batch.items() if k in known})
    float(model(**batches[0]).loss)  # the first call warms up
    start = time.perf_counter()
    for batch in batches:
        float(model(**batch).loss)
    return (time.perf_counter() - start) / len(batches)
