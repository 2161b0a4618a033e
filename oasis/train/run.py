"""One training run: stream, selection, evaluation at the task boundaries, record on disk."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from oasis import policies
from oasis.train import SelectionTrainer, strict_yaml
from oasis.train.accounts import accounts
from oasis.train.config import RunConfig, difference
from oasis.train.evaluate import a_avg, a_last
from oasis.train.record import EventLog, read_events
from oasis.train.workspace import Workspace

EVENTS, CONFIG, OFFSET = "events.jsonl", "config.yaml", "events_offset.json"


@dataclass
class RunResult:
    """Outcome of a run. `seconds` is wall-clock time without loading and zero-shot evaluation.

    `history[k]` holds the accuracies at the end of task k. `forward_seconds` is the mean time of a
    plain forward with loss of one candidate batch, None where it was not measured. A run that was
    stopped early is not `finished` and has None for `a_last` and `a_avg`.
    """

    directory: Path
    policy: str
    finished: bool
    steps: int
    zero_shot: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    a_last: float | None = None
    a_avg: float | None = None
    candidates: int = 0
    selected: int = 0
    seconds: float = 0.0
    score_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    forward_seconds: float | None = None

    @property
    def ratio(self) -> float:
        """Selected over candidates, as it came out."""
        return self.selected / self.candidates if self.candidates else 0.0


class Boundaries(TrainerCallback):
    """Evaluates at the task boundaries, ties checkpoints to the record, stops where asked."""

    def __init__(
        self,
        config: RunConfig,
        workspace: Workspace,
        boundaries: list[int],
        log: EventLog,
        progress: bool,
    ) -> None:
        self.config = config
        self.workspace = workspace
        self.boundaries = boundaries
        self.log = log
        self.progress = progress

    def evaluate(self, model: nn.Module, step: int, after_task: int) -> None:
        seen = slice(None) if self.config.evaluate == "all" else slice(after_task + 1)
        start = time.perf_counter()
        last = after_task == len(self.boundaries) - 1
        held_out = None if last else self.config.boundary_held_out
        accuracy = {
            task.name: self.workspace.accuracy(model, task, held_out)
            for task in self.workspace.tasks[seen]
        }
        seconds = time.perf_counter() - start
        self.log.write(_evaluation(step, after_task, accuracy, seconds))
        if self.progress:
            values = ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracy.items())
            tqdm.write(f"after {self.config.tasks[after_task]}: {values}")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for index, boundary in enumerate(self.boundaries):
            if boundary == state.global_step:
                self.evaluate(model, boundary, index)
        if self.config.stop_after and state.global_step >= self.config.stop_after:
            control.should_save = control.should_training_stop = True
        elif self.config.save_steps and state.global_step % self.config.save_steps == 0:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        temporary = checkpoint / f".{OFFSET}"
        temporary.write_text(json.dumps(self.log.offset), encoding="utf-8")
        temporary.replace(checkpoint / OFFSET)  # there whole or not at all


def _evaluation(step: int, after_task: int, accuracy: dict[str, float], seconds: float) -> dict:
    return {
        "type": "evaluation",
        "step": step,
        "after_task": after_task,
        "accuracy": accuracy,
        "seconds": seconds,
    }


def run(
    config: RunConfig, *, progress: bool = True, workspace: Workspace | None = None
) -> RunResult:
    """Train as `config` says and write the run directory `config.directory`.

    `progress` shows the Trainer's bar and log lines. `workspace` shares the loaded model, the tasks
    and the zero-shot accuracies among several runs; its model has no LoRA left on it afterwards.
    An existing run of the same name is replaced, unless `config.resume` goes on with it.
    """
    # Before anything is downloaded: options that the policy refuses.
    policy = policies.create(config.policy, config.ratio, config.seed, **config.policy_options)
    if workspace is None:
        workspace = Workspace(config)
    workspace.check(config)
    stream = workspace.stream(config)
    boundaries = stream.boundaries
    directory = config.directory
    checkpoint, offset = _prepare(directory, config)
    earlier = _spent(read_events(directory / EVENTS, offset)) if offset else 0.0
    with closing(EventLog(directory / EVENTS, offset)) as log, workspace.lora(config) as model:
        if not offset:
            ratio = 1.0 if config.policy == "full" else config.ratio
            log.write(
                {
                    "type": "start",
                    "policy": config.policy,
                    "label": config.label or config.policy,
                    "ratio": ratio,
                    "seed": config.seed,
                    "tasks": config.tasks,
                    "boundaries": boundaries,
                    "model": config.model,
                    "device": str(workspace.device),
                }
            )
            accuracy = workspace.zero_shot()
            log.write(_evaluation(0, -1, accuracy, workspace.zero_shot_seconds))
        started = time.perf_counter()
        callback = Boundaries(config, workspace, boundaries, log, progress)
        for index, boundary in enumerate(boundaries):
            # A first task too short for a batch ends before any training.
            if boundary == 0 and not offset:
                callback.evaluate(model, 0, index)
        trainer = SelectionTrainer(
            model=model,
            args=training_arguments(config, workspace, stream.steps, progress),
            train_dataset=stream,
            data_collator=workspace.collator,
            processing_class=workspace.tokenizer,
            policy=policy,
            layer=config.layer,
            on_event=log.write,
            task_names=config.tasks,
        )
        trainer.add_callback(callback)
        if not progress:
            trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=checkpoint)
        elapsed = earlier + time.perf_counter() - started
        finished = trainer.state.global_step == stream.steps
        forward = _forward_seconds(config, workspace, model) if finished else None
        result = _result(directory, config, trainer, finished, forward)
        result.seconds = elapsed
        if finished:
            record = read_events(directory / EVENTS)
            log.write({**_end(result), **accounts(record, workspace, model, policy, config.layer)})
            model.save_pretrained(directory / "adapter")
    return result


def _prepare(directory: Path, config: RunConfig) -> tuple[str | None, int]:
    """Make the run directory ready: the checkpoint to resume from and the bytes of record to keep.

    ValueError where a run to be resumed was started with other settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = _last_checkpoint(directory) if config.resume else None
    if checkpoint is None:
        for old in directory.glob("checkpoint-*"):
            shutil.rmtree(old)
        config.save(directory / CONFIG)
        return None, 0
    saved = strict_yaml.read(directory / CONFIG)
    if found := difference(config, saved):
        name, value, before = found
        raise ValueError(
            f"{name}: got {value!r}, but the run to be resumed in {directory} has "
            f"{before!r}; use another name, or resume=false to start anew"
        )
    offset = json.loads((checkpoint / OFFSET).read_text(encoding="utf-8"))
    return str(checkpoint), offset


def _last_checkpoint(directory: Path) -> Path | None:
    """The last checkpoint that is whole; what a kill left of later ones is removed."""
    for path in sorted(directory.glob("checkpoint-*"), key=lambda p: -int(p.name.split("-")[1])):
        if (path / OFFSET).exists():  # the last of its files to be written
            return path
        shutil.rmtree(path)
    return None


def training_arguments(
    config: RunConfig, workspace: Workspace, steps: int, progress: bool
) -> TrainingArguments:
    """Optimizer, schedule, clipping and the rest of how a run of `steps` steps trains."""
    return TrainingArguments(
        output_dir=str(config.directory),
        max_steps=steps,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_schedule,
        lr_scheduler_kwargs={"num_decay_steps": config.decay_steps} if config.decay_steps else None,
        warmup_steps=config.warmup_steps,
        weight_decay=0.0,
        optim="adamw_torch",
        max_grad_norm=config.max_grad_norm,
        logging_strategy="steps" if config.logging_steps else "no",
        logging_steps=config.logging_steps or 1,
        save_strategy="no",  # the callback asks for checkpoints, after its evaluation is recorded
        save_total_limit=2,
        report_to="none",
        disable_tqdm=not progress,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=workspace.device.type == "cpu",
        seed=config.seed,
    )


@torch.no_grad()
def _forward_seconds(config: RunConfig, workspace: Workspace, model: nn.Module) -> float | None:
    """Mean time of a plain forward with loss over the first `forward_batches` candidate batches."""
    if not config.forward_batches:
        return None
    model.eval()
    batches = []
    for items in islice(workspace.stream(config).batches(), config.forward_batches):
        batch = workspace.collator(items)
        del batch["task"]
        batches.append({name: value.to(workspace.device) for name, value in batch.items()})
    float(model(**batches[0]).loss)  # the first call warms up
    start = time.perf_counter()
    for batch in batches:
        float(model(**batch).loss)
    return (time.perf_counter() - start) / len(batches)


def _result(
    directory: Path,
    config: RunConfig,
    trainer: SelectionTrainer,
    finished: bool,
    forward_seconds: float | None,
) -> RunResult:
    """Sum up the record; `seconds` is left to the caller."""
    events = read_events(directory / EVENTS)
    evaluations = {e["after_task"]: e["accuracy"] for e in events if e["type"] == "evaluation"}
    history = [evaluations[k] for k in sorted(evaluations) if k >= 0]
    counts = trainer.selection_counts
    return RunResult(
        directory=directory,
        policy=config.policy,
        finished=finished,
        steps=trainer.state.global_step,
        zero_shot=evaluations[-1],
        history=history,
        a_last=a_last(history, config.tasks) if finished else None,
        a_avg=a_avg(history, config.tasks) if finished else None,
        candidates=counts.candidates,
        selected=counts.selected,
        score_seconds=_spent(events, "selection"),
        train_seconds=_spent(events, "step"),
        evaluation_seconds=_spent(events, "evaluation"),
        forward_seconds=forward_seconds,
    )


def _spent(events: list[dict], *kinds: str) -> float:
    """Seconds that events (of `kinds`, or all) took; not the zero-shot evaluation, which is shared
    among the runs of a workspace."""
    return sum(
        event["seconds"]
        for event in events
        if "seconds" in event
        and (not kinds or event["type"] in kinds)
        and event.get("after_task") != -1
    )


def _end(result: RunResult) -> dict:
    names = ("a_last", "a_avg", "candidates", "selected", "seconds", "score_seconds")
    names += ("train_seconds", "evaluation_seconds", "forward_seconds")
    return {"type": "end", **{name: getattr(result, name) for name in names}}
