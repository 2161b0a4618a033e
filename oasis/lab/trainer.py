"""The trainer of a run, and whether there can be one."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn
from transformers import TrainingArguments

from oasis.lab.arguments import Plan, plan, training_arguments
from oasis.lab.config import RunConfig
from oasis.lab.data.stream import Stream
from oasis.lab.workspace import Workspace
from oasis.policies import Policy
from oasis.train import SelectionTrainer


def trainer_of(
    config: RunConfig,
    workspace: Workspace,
    model: nn.Module,
    policy: Policy,
    stream: Stream,
    arguments: TrainingArguments,
    on_event: Callable[[dict], None] | None = None,
) -> SelectionTrainer:
    """The trainer of a run on `model`, with LoRA; ValueError, naming it, for what it cannot do."""
    return SelectionTrainer(
        model=model,
        args=arguments,
        train_dataset=stream,
        data_collator=workspace.collator,
        processing_class=workspace.tokenizer,
        policy=policy,
        layer=config.layer,
        mode=config.mode,
        reuse_forward=config.reuse_forward,
        score_batch_size=config.score_batch_size,
        score_depth=config.score_depth,
        score_with=workspace.scorer(config),
        rescore=config.rescore,
        on_event=on_event,
        task_names=workspace.names,
    )


@dataclass(frozen=True)
class Prepared:
    """What a run trains on, how far, and the Trainer's arguments."""

    stream: Stream
    plan: Plan
    arguments: TrainingArguments


def prepare(
    config: RunConfig, workspace: Workspace, policy: Policy, progress: bool = False
) -> Prepared:
    """All that a run can be refused for once its data are there, before anything is measured or
    written: the errors of `plan` and `trainer_of`.
    """
    stream = workspace.stream(config)
    planned = plan(config, stream)
    cpu = workspace.device.type == "cpu"
    arguments = training_arguments(config, planned.steps, cpu=cpu, progress=progress)
    prepared = Prepared(stream, planned, arguments)
    with passing_trainer(config, workspace, policy, prepared):
        return prepared


@contextmanager
def passing_trainer(
    config: RunConfig, workspace: Workspace, policy: Policy, prepared: Prepared
) -> Iterator[SelectionTrainer]:
    """The trainer of a run, of which nothing is left afterwards: no LoRA, no folder."""
    arguments = copy.copy(prepared.arguments)
    with tempfile.TemporaryDirectory() as folder, workspace.lora(config) as model:
        arguments.output_dir = folder  # is made
        yield trainer_of(config, workspace, model, policy, prepared.stream, arguments)
