"""What a run will do and what it takes, from one batch of it."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator

import torch
from torch import nn

from oasis import policies
from oasis.lab.config import RunConfig
from oasis.lab.trainer import passing_trainer, prepare
from oasis.lab.workspace import Workspace
from oasis.train import SelectionTrainer
from oasis.train.batch.columns import ITEM, TASK
from oasis.train.batch.subbatch import right_padded, take
from oasis.train.loss import summed_cross_entropy
from oasis.train.scoring import inspect_head


def dry_run(config: RunConfig, workspace: Workspace | None = None) -> Iterator[str]:
    """Steps, candidates, samples to expect, memory and time of a run, line by line.

    Loads the model and the rows, scores one candidate batch, trains on a share of it without
    moving a weight, and writes nothing.
    """
    policy = policies.create(config.policy, config.ratio, config.seed, **config.policy_options)
    workspace = workspace or Workspace(config)
    yield from workspace.said
    prepared = prepare(config, workspace, policy)
    planned = prepared.plan
    ratio = 1.0 if config.policy == "full" else config.ratio
    candidates = planned.batches * config.batch_size
    at_most = "" if config.rescore is None else "at most "  # those that return may be left out
    if config.epochs is not None:  # the last batch of an epoch is shorter
        candidates = min(candidates, config.epochs * sum(map(len, workspace.arrivals)))
    for task, end in zip(workspace.tasks, planned.boundaries, strict=True):
        judged = "its answers" if task.choices else task.metric or "its loss"
        yield (
            f"{task.name}: until step {end}, judged by {judged} on {len(task.test)} held-out rows"
        )
    yield (
        f"{planned.steps} steps, {at_most}{candidates} candidates in batches of "
        f"{config.batch_size}, about {int(ratio * candidates)} samples trained on "
        f"(policy {config.policy}, ratio {ratio:g})"
    )
    with passing_trainer(config, workspace, policy, prepared) as trainer:
        model = trainer.model
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        whole = sum(p.numel() for p in model.parameters())
        yield f"LoRA trains {trained:,} of {whole:,} parameters on {workspace.device}"
        # With mode "fill" a step takes what it selects of several candidate batches.
        fill = config.mode == "fill"
        unit, count = ("candidate batch", planned.batches) if fill else ("step", planned.steps)
        each = planned.batches // count
        score, train = (each * seconds for seconds in _measure(config, workspace, trainer, ratio))
        yield (
            f"a {unit} takes about {score + train:.2f} s ({score:.2f} s to score, {train:.2f} s to "
            f"train), all {count} about {_duration(count * (score + train))}; "
            "evaluation comes on top"
        )
    yield f"memory: {_memory(workspace.device) / 2**30:.2f} GiB at most so far, with one step of it"


def _measure(
    config: RunConfig, workspace: Workspace, trainer: SelectionTrainer, ratio: float
) -> tuple[float, float]:
    """Seconds to score a candidate batch and to train on the share `ratio` of it: the second time,
    since the first warms up.
    """
    items = next(workspace.stream(config).batches())
    batch = right_padded(
        {
            name: values.to(workspace.device)
            for name, values in workspace.collator(items).items()
            if name not in (TASK, ITEM)
        }
    )
    model: nn.Module = trainer.model
    head = inspect_head(model, batch)
    chosen = take(batch, torch.arange(max(1, round(ratio * len(items)))))
    score = train = 0.0
    for _ in range(2):
        start = time.perf_counter()
        trainer.score_and_forget(batch)
        scored = time.perf_counter()
        loss, count, _ = summed_cross_entropy(model, chosen, gather=head.gather)
        (loss / count).backward()
        float(loss.detach())  # waits for the device
        score, train = scored - start, time.perf_counter() - scored
        model.zero_grad()
    return score, train


def _memory(device: torch.device) -> int:
    """Bytes that this process, or its tensors on a GPU, took at most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
