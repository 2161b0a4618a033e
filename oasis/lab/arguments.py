"""The arguments of the Trainer of a run: what the run decides, and what `training` passes on."""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

from transformers import TrainingArguments

from oasis.lab.config import RunConfig
from oasis.lab.data.stream import Stream
from oasis.lab.record.checkpoints import scratch
from oasis.lab.settings import WrongSetting
from oasis.lab.settings.errors import unknown

logger = logging.getLogger(__name__)

# What `training` may replace.
DEFAULTS = {
    "weight_decay": 0.0,
    "optim": "adamw_torch",
    "report_to": "none",
    "dataloader_pin_memory": False,
    # Else accelerate cuts all tensors of a batch to as many rows as samples: patches of images too.
    "accelerator_config": {"dispatch_batches": False},
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Optimizer steps of a run, those made by the end of each task, and candidate batches in all;
    what is left of a stream's batches is no whole step.
    """

    steps: int
    boundaries: list[int]
    batches: int


def plan(config: RunConfig, stream: Stream) -> Plan:
    """As many whole steps as the stream's batches make.

    Raises:
        WrongSetting: they make none.
    """
    each, fill = accumulation(config), config.mode == "fill"
    steps, left = steps_of(config, stream.steps), 0 if fill else stream.steps % each
    if steps == 0 and fill:
        raise WrongSetting(
            f"mode: got 'fill', but a ratio of {config.ratio:g} of {stream.steps} candidate "
            "batches fills no step, expected 'step', or more arrivals"
        )
    if steps == 0:
        raise WrongSetting(
            f"training.gradient_accumulation_steps: got {each}, expected at most the "
            f"{stream.steps} candidate batches of the stream"
        )
    if left:
        logger.warning("the last %d candidate batches are no whole step and left out", left)
    boundaries = [steps_of(config, end) for end in stream.boundaries]
    return Plan(steps, boundaries, stream.steps - left)


def training_arguments(
    config: RunConfig, steps: int, *, cpu: bool, progress: bool
) -> TrainingArguments:
    """Optimizer, schedule, clipping and the rest of how a run of `steps` steps trains.

    Raises:
        WrongSetting: a value under `training` that transformers refuses.
    """
    check(config)
    own = {name: value for name, (value, _) in _own(config, steps, cpu, progress).items()}
    try:
        return TrainingArguments(**{**DEFAULTS, **config.training, **own})
    except (TypeError, ValueError, ImportError) as error:
        raise WrongSetting(f"training: {' '.join(str(error).split())}") from error


def check(config: RunConfig) -> None:
    """WrongSetting for a name under `training` that there is none of, or that the run decides."""
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    own = _own(config, 1, True, False)
    for name in config.training:
        if name not in known:
            raise unknown(f"training.{name}", name, known)
        if name in own:
            raise WrongSetting(f"training.{name}: {own[name][1]}")
    if not isinstance(accumulation(config), int) or accumulation(config) < 1:
        raise WrongSetting(
            f"training.gradient_accumulation_steps: got {accumulation(config)!r}, expected an "
            "integer from 1"
        )


def accumulation(config: RunConfig) -> int:
    """Candidate batches per step."""
    return config.training.get("gradient_accumulation_steps", 1)


def checkpointed(config: RunConfig) -> bool:
    """Whether the backward pass runs the blocks again; transformers has two names for it."""
    return any(config.training.get(f"{kind}_checkpointing") for kind in ("activation", "gradient"))


def steps_of(config: RunConfig, batches: int) -> int:
    """Optimizer steps of so many candidate batches: with mode "fill" as many as the selected
    samples fill.
    """
    share = config.ratio if config.mode == "fill" and config.policy != "full" else 1.0
    return int(share * batches + 1e-9) // accumulation(config)


def _own(config: RunConfig, steps: int, cpu: bool, progress: bool) -> dict[str, tuple[Any, str]]:
    """What the run decides: value by name, and what to set instead."""
    decay = {"num_decay_steps": config.decay_steps} if config.decay_steps else None
    stream = "the stream decides; set `arrivals` and `iterations_per_sample`"
    boundaries = "a run evaluates at its task boundaries"
    return {
        # The callback takes checkpoints from there.
        "output_dir": (str(scratch(config.directory)), "set `out` and `name`"),
        "max_steps": (steps, stream),
        "num_train_epochs": (1, stream),
        "per_device_train_batch_size": (config.batch_size, "set `batch_size`"),
        "auto_find_batch_size": (False, "set `batch_size`"),
        "learning_rate": (config.learning_rate, "set `learning_rate`"),
        "lr_scheduler_type": (config.lr_schedule, "set `lr_schedule`"),
        "lr_scheduler_kwargs": (decay, "set `decay_steps`"),
        "warmup_steps": (config.warmup_steps, "set `warmup_steps`"),
        "max_grad_norm": (config.max_grad_norm, "set `max_grad_norm`"),
        "logging_strategy": ("steps" if config.logging_steps else "no", "set `logging_steps`"),
        "logging_steps": (config.logging_steps or 1, "set `logging_steps`"),
        # The callback asks for checkpoints, after its evaluation is recorded.
        "save_strategy": ("no", "set `save_steps`"),
        "save_steps": (500, "set `save_steps` of the run"),
        "save_only_model": (False, "a run resumes from its checkpoints"),
        "ignore_data_skip": (False, "a run resumes to the same selections"),
        "eval_strategy": ("no", boundaries),
        "load_best_model_at_end": (False, boundaries),
        "remove_unused_columns": (False, "the record needs them"),
        # Off a terminal a bar's carriage returns are noise.
        "disable_tqdm": (not (progress and sys.stderr.isatty()), "the run decides"),
        "use_cpu": (cpu, "set `device`"),
        "seed": (config.seed, "set `seed`"),
        "data_seed": (None, "set `seed` and `data_seed` of the run"),
    }
