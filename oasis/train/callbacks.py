"""What happens around an optimizer step, and the progress bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import has_length

from oasis.policies import Policy
from oasis.policies.base import wants_length
from oasis.train.events import Counts, StepState, step_event
from oasis.train.fill import ratio_of


def candidate_batches(args, state, dataloader, ratio: float | None = None) -> int:
    """How many batches a training of `state.max_steps` steps fetches (on each process). Steps take
    `gradient_accumulation_steps` of them, the last of an epoch what is left; with a `ratio`, as
    many as full training batches take of that share.
    """
    each = args.gradient_accumulation_steps
    if ratio is not None:
        return math.ceil(state.max_steps * each / ratio)
    if not has_length(dataloader):
        return state.max_steps * each
    epochs, rest = divmod(state.max_steps, math.ceil(len(dataloader) / each))
    return epochs * len(dataloader) + rest * each


class SelectionHooks(TrainerCallback):
    """Tell the policy how long the training is, if it asks; leave the parameters alone in a step
    that selected nothing; report each step.
    """

    def __init__(
        self,
        policy: Policy,
        state: StepState,
        on_event: Callable[[dict], None] | None,
        mode: str = "step",
    ):
        self.policy, self.step, self.on_event = policy, state, on_event
        self.fills = mode == "fill"
        self._schedule: dict | None = None  # before an empty step of the warm-up

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if wants_length(self.policy):
            ratio = ratio_of(self.policy) if self.fills else None
            self.policy.total_batches = candidate_batches(args, state, train_dataloader, ratio)

    def on_pre_optimizer_step(
        self,
        args,
        state,
        control,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: LRScheduler,
        **kwargs,
    ):
        if self.step.trains:
            return
        if (
            isinstance(optimizer, AcceleratedOptimizer)
            and optimizer.scaler is not None  # it steps only after a look at gradients
            and args.max_grad_norm <= 0
        ):
            optimizer.scaler.unscale_(optimizer.optimizer)
        # Adam moves on a zero gradient (momentum, decay) but leaves a parameter without one.
        for parameter in model.parameters():
            parameter.grad = None
        # Neither is there a warm-up where nothing moves.
        if getattr(lr_scheduler, "last_epoch", math.inf) < args.get_warmup_steps(state.max_steps):
            self._schedule = lr_scheduler.state_dict()

    def on_step_end(
        self, args, state, control, *, lr_scheduler: LRScheduler, optimizer: Optimizer, **kwargs
    ):
        if self._schedule is not None:
            lr_scheduler.load_state_dict(self._schedule)
            rates = self._schedule["_last_lr"]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self._schedule = None
        step = self.step
        step.end()
        if self.on_event is None and args.disable_tqdm:
            return  # nobody looks at the loss: do not wait for the device
        if step.tokens:
            step.last_loss = float(step.loss)
        if self.on_event is not None:
            self.on_event(step_event(step, state.global_step))


class SelectionProgress(ProgressCallback):
    """The Trainer's progress bar with the task, the ratio so far and the last loss behind it.

    The task is the one most of the last candidates are of, by its name where `task_names` are
    given, by its index otherwise, and left out where the batches tell none.
    """

    def __init__(self, counts: Counts, step: StepState, task_names: Sequence[str] = ()):
        super().__init__()
        self.counts, self.step, self.task_names = counts, step, task_names

    def describe(self) -> dict[str, str]:
        """The fields behind the bar."""
        shown = {}
        if self.step.tasks:
            task = self.step.tasks.most_common(1)[0][0]
            shown["task"] = self.task_names[task] if 0 <= task < len(self.task_names) else str(task)
        shown["ratio"] = f"{self.counts.ratio:.4f}"
        if self.step.last_loss is not None:
            shown["loss"] = f"{self.step.last_loss:.4f}"
        return shown

    def close(self) -> None:
        """End the bars' lines where training ends before them: what is said next has its own."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()

    def on_step_end(self, args, state, control, **kwargs):
        if self.training_bar is not None:  # on the first process
            self.training_bar.set_postfix(self.describe(), refresh=False)
        super().on_step_end(args, state, control, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        # The summary at the end is what `train()` returns; among our lines it is noise.
        if logs is None or "train_runtime" not in logs:
            super().on_log(args, state, control, logs=logs, **kwargs)
