"""Selection inside `transformers.Trainer`: choose in `get_batch_samples`, own the loss."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import TrainOutput
from transformers.utils import logging

from oasis import Selection, Selector, policies
from oasis.policies.base import validation_rows
from oasis.train import transformers_private
from oasis.train.batch import packed
from oasis.train.batch.columns import ITEM, TASK, WEIGHT
from oasis.train.batch.images import COUNTS, count_images
from oasis.train.batch.subbatch import Nothing, answers, dummy, right_padded, take, targets
from oasis.train.callbacks import SelectionHooks, SelectionProgress
from oasis.train.events import DRY, Counts, StepState, selection_event, statistics
from oasis.train.loss import loss_owner, router_loss, summed_cross_entropy
from oasis.train.refusals import check_arguments, check_model, check_order, check_trainer
from oasis.train.scoring import (
    Head,
    forward_parameters,
    inspect_head,
    is_compiled,
    text_config,
    unwrap,
)
from oasis.train.signals.compute import LAYERS, compute
from oasis.train.signals.sample_grads import SampleGradients
from oasis.train.state import SelectionState, keep_selectors_apart

logger = logging.get_logger(__name__)


class SelectionMixin(transformers_private.PrivateHooks):
    """Train on the samples of each micro-batch that a policy selects, and on no others.

    Put it in front of a trainer: `class MyTrainer(SelectionMixin, SFTTrainer)`. For a causal
    language model; batches are dicts of tensors with `input_ids`, `labels` (unshifted, -100 where
    nothing is predicted) and usually `attention_mask`; "oasis_task" and "oasis_item" [N] (int64)
    are logged.
    Rows padded on the left are moved to the first column: a sample counts as it does alone, with
    positions from its first token on.
    Keys that the model's `forward` does not take are dropped. Images may lie one behind another
    (`pixel_values` of LLaVA or Qwen-VL): see docs/multimodal.md.

    Args:
        policy: a policy, an `oasis.Selector`, or the name of a policy (default "oasis"). By name,
            each process draws with a seed of its own; of an object you choose it: let it differ.
        ratio: fraction of the candidates to train on where `policy` is a name; default 0.25.
        layer: whose gradients the policy's Gram matrix is of: "head" (the default), the output
            head, from a forward alone; or "last_block", the trained weights of the last transformer
            block (the paper's public code), which takes a backward through that block. That one
            takes whole weights or FSDP2's shards, as policies that need gradients of weights do.
        on_event: called on every process with a dict for each candidate batch ("selection") and
            each optimizer step ("step"); both count optimizer steps from 1.
        task_names: names of the tasks by index, for the progress bar.

    In a step that selects nothing on any process no parameter moves, no moment of the optimizer.
    Logged losses and `train_loss` are means over the steps that trained; counts are of all
    processes. The loss is that of the trainer behind this where it has one of its own.
    """

    kept_columns = (TASK, ITEM)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, SelectionMixin)

    def __init__(
        self,
        *args: Any,
        policy: policies.Policy | Selector | str = "oasis",
        ratio: float | None = None,
        layer: str = "head",
        on_event: Callable[[dict], None] | None = None,
        task_names: Sequence[str] = (),
        **kwargs: Any,
    ):
        if isinstance(policy, type) or not isinstance(policy, (str, Selector, policies.Policy)):
            got = f"the class {policy.__name__}" if isinstance(policy, type) else repr(policy)
            raise TypeError(f"policy: got {got}, expected a policy object, a Selector or a name")
        if ratio is not None and not isinstance(policy, str):
            raise ValueError("ratio: only for a policy given by name; set it on the policy itself")
        if layer not in LAYERS:
            raise ValueError(f"layer: got {layer!r}, expected one of {', '.join(LAYERS)}")
        check_trainer(type(self))
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        if isinstance(policy, str):
            seed = self.args.seed + self.args.process_index  # ranks draw independently
            policy = policies.create(policy, 0.25 if ratio is None else ratio, seed)
        elif isinstance(policy, Selector):
            policy = policies.Oasis(selector=policy)
        needs = policy.needs
        if isinstance(needs, str) or not set(needs) <= policies.SIGNALS:
            raise ValueError(
                f"policy {policy.name!r}: got needs={needs!r}, expected a set of some of "
                f"{sorted(policies.SIGNALS)}"
            )
        check_model(self.model, scores=bool(needs))
        self.layer = layer
        self._on_event = on_event
        self._step = StepState()
        self._head: Head | None = None
        self._inspected = False  # on every process
        self._grads = SampleGradients()
        rank = self.args.process_index
        self._selection = SelectionState(
            policy, rank, self.args.world_size, seed=self.args.seed + rank
        )
        self._owner = loss_owner(type(self), SelectionMixin)
        if self._owner is SelectionMixin and self.compute_loss_func is None:
            # `compute_loss` divides by num_items_in_batch itself, whatever the model does with it.
            self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        transformers_private.labels_are_shifted(self)
        keep_selectors_apart(self.model)
        self.add_callback(SelectionHooks(policy, self._step, on_event))
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(SelectionProgress(self.selection_counts, self._step, task_names))

    @property
    def policy(self) -> policies.Policy:
        """What selects."""
        return self._selection.policy

    @property
    def selection_counts(self) -> Counts:
        """What this process has seen and selected."""
        return self._selection.counts

    # ---- selection ----

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Fetch `num_batches` micro-batches and return what is selected of each, and the number of
        selected label tokens, that the loss of all of them is divided by.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        before = self.selection_counts.selected
        self._step.tasks.clear()
        chosen = [self._select(batch) for batch in batches]
        tokens = [int(targets(batch["labels"]).sum()) for batch in chosen]
        training = int(self._over_processes([sum(tokens) > 0]).sum())
        num_items = transformers_private.count_label_tokens(self, chosen, device)
        samples = self.selection_counts.selected - before
        self._step.start(samples, tokens, training, self.args.world_size)
        return chosen, num_items

    def _over_processes(self, values: Sequence[int]) -> torch.Tensor:
        """These numbers of all processes, [processes, len(values)] int64."""
        found = torch.tensor([int(value) for value in values], device=self.args.device)
        if self.args.world_size > 1:
            found = self.accelerator.gather(found)
        return found.view(-1, len(values)).cpu()

    def _select(self, batch: dict) -> dict:
        if batch.get("labels") is None:
            raise ValueError(f"batch: got keys {sorted(batch)}, expected 'labels' among them")
        start = time.perf_counter()
        batch = transformers_private.prepare_inputs(self, batch)
        task, item = batch.pop(TASK, None), batch.pop(ITEM, None)
        given = batch = self._of_use(batch)
        several = packed.is_packed(batch)
        if several:
            batch = packed.unpacked(batch)
        batch = right_padded(count_images(batch, unwrap(self.model).config))
        if not self._inspected:
            self._inspect(batch)
        signals = self._signals(batch, task)
        selection = self.policy.observe(signals)
        if not isinstance(selection, Selection):
            raise TypeError(
                f"policy {self.policy.name!r}: observe returned {type(selection).__name__}, "
                "expected an oasis.Selection (policies.unscored(mask) makes one of a mask)"
            )
        mask = selection.mask.detach().cpu()
        selection.check()  # the device has been waited for
        if mask.shape != (signals.num_samples,) or mask.dtype != torch.bool:
            raise ValueError(
                f"policy {self.policy.name!r}: got a mask {tuple(mask.shape)} of {mask.dtype}, "
                f"expected ({signals.num_samples},) of torch.bool"
            )
        rows = mask.nonzero().flatten()
        weight = self._weight(selection, mask)
        if len(rows):
            chosen = take(batch, rows)
            if weight is not None:
                labels = chosen["labels"]
                chosen[WEIGHT] = weight[rows].to(labels.device).unsqueeze(1).expand_as(labels)
        else:
            # NaN activations would turn the zero gradients of a dummy into NaN.
            usable = (~selection.skipped).nonzero().flatten().tolist()
            chosen = dummy(batch, usable[0] if usable else 0)
        chosen.pop(COUNTS, None)
        if several:
            chosen = type(chosen)(packed.packed(chosen, given))
        self._account(selection, signals, task, item, time.perf_counter() - start)
        return chosen

    def _of_use(self, batch: dict) -> dict:
        """The keys that the model's forward takes; all that a loss of another's may ask for."""
        known = forward_parameters(self.model) | packed.KEYS | {"labels", COUNTS}
        if self._owner is not SelectionMixin:
            return dict(batch)
        return {key: value for key, value in batch.items() if key in known and value is not None}

    def _weight(self, selection: Selection, mask: torch.Tensor) -> torch.Tensor | None:
        """Loss weights [N] of the candidates on the CPU, or None for a plain sum."""
        if selection.weight is None:
            return None
        weight = selection.weight.detach().cpu().float()
        if weight.shape != mask.shape or not (weight[mask].isfinite() & (weight[mask] >= 0)).all():
            raise ValueError(
                f"policy {self.policy.name!r}: got weights {tuple(weight.shape)}, expected "
                f"{tuple(mask.shape)}, finite and >= 0 for the selected samples"
            )
        if self.compute_loss_func is not None or self._owner is not SelectionMixin:
            whose = "compute_loss_func" if self.compute_loss_func else self._owner.__name__
            raise ValueError(
                f"policy {self.policy.name!r} weighs samples, which the loss of {whose} cannot "
                "see; expected SelectionTrainer with its own loss, or a policy without weights"
            )
        return weight

    def _inspect(self, batch: dict) -> None:
        def everywhere(here: bool) -> bool:
            return bool(self._over_processes([here]).all())

        if getattr(unwrap(self.model), "get_output_embeddings", lambda: None)() is None:
            self._head = Head(gather=False, verified=True)  # of a policy that scores nothing
        else:
            # Not through DDP: ranks may look at different numbers of rows, and DDP syncs buffers.
            self._head = inspect_head(self.model, batch, everywhere)
        if is_compiled(self.model_wrapped):
            self._head = replace(self._head, gather=False)  # no hook of ours is seen there
        elif self._head.verified and not self._head.gather:
            logger.warning(
                "%s needs all hidden states to compute logits: the loss computes every logit",
                type(unwrap(self.model)).__name__,
            )
        self._inspected = everywhere(self._head.verified)

    def _signals(self, batch: dict, task: torch.Tensor | None) -> policies.Signals:
        labels, needs = batch["labels"], frozenset(self.policy.needs)
        free = {"tokens": targets(labels).sum(dim=1), "answer": answers(labels), "task": task}
        if not needs:
            return policies.Signals(len(labels), **free)
        scored = batch
        if self._selection.rehearsal is not None:
            pad = getattr(text_config(self.model), "pad_token_id", None) or 0
            rows = validation_rows(self.policy)
            scored = self._selection.rehearsal.beside(batch, rows, pad_token_id=pad)
        known = compute(
            self.model_wrapped, scored, self._head, needs, len(labels), self._grads, self.layer
        )
        return policies.Signals(len(labels), **free, **known)

    # ---- loss ----

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Summed cross-entropy over the label tokens, each times the weight of its sample where
        the selection has weights, / their number in the whole step (on all processes, with
        `average_tokens_across_devices`, times the number of those); or what the trainer behind
        this, or `compute_loss_func`, makes of the selected rows.
        """
        nothing = isinstance(inputs, Nothing)
        if self._owner is not SelectionMixin or (self.compute_loss_func and not nothing):
            inputs = {key: value for key, value in inputs.items() if key not in (TASK, ITEM)}
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            loss, outputs = found if return_outputs else (found, None)
        else:
            loss, outputs = self._own_loss(model, inputs, return_outputs, num_items_in_batch)
        if nothing:
            loss = loss * 0  # a loss that needs no label: a router's balance
        whole = self.args.average_tokens_across_devices and num_items_in_batch is not None
        if model.training and not whole:
            loss = loss * self._step.scale  # DDP divides by all processes
        return (loss, outputs) if return_outputs else loss

    def _own_loss(self, model, inputs, return_outputs: bool, num_items_in_batch):
        loss, count, outputs = summed_cross_entropy(
            model,
            inputs,
            gather=not return_outputs and self._head is not None and self._head.gather,
            label_smoothing=self.args.label_smoothing_factor,
        )
        items = count if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(items, device=loss.device).clamp(min=1)
        loss = loss + router_loss(model, outputs)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        return loss, outputs

    def training_step(self, model, inputs, *args: Any, **kwargs: Any):
        nothing = isinstance(inputs, Nothing)
        if nothing and self._may_be_left_out():
            return torch.zeros((), device=self.args.device)
        # What losses that are means over a micro-batch are divided by.
        self.current_gradient_accumulation_steps = self._step.micro_batches
        loss = super().training_step(model, inputs, *args, **kwargs)
        if nothing and not loss.isfinite():
            raise ValueError(
                f"compute_loss of {self._owner.__name__}: got {float(loss)} for a row without a "
                "label, which stands for a micro-batch of which nothing was selected; expected a "
                "number (divide by at least 1)"
            )
        self._step.loss += loss
        return loss

    def _may_be_left_out(self) -> bool:
        """Whether a micro-batch of which nothing was selected needs no forward and no backward."""
        if self.accelerator.scaler is not None:
            return False  # it wants to see gradients in every step
        if not self._step.trains:
            return True  # on every process
        counted = self.accelerator.distributed_type == "DEEPSPEED"  # steps when it has seen all
        return self.args.world_size == 1 and not counted

    # ---- accounts ----

    def _account(self, selection, signals, task, item, seconds: float) -> None:
        self.selection_counts.add(selection, signals)
        counts = self.selection_counts
        if counts.batches == 8 and counts.candidates == 0:
            logger.warning("none of the first 8 candidate batches had a sample to train on: no "
                           "label other than -100, or scores that are not finite")  # fmt: skip
        if counts.batches == 8 == counts.candidates == signals.num_samples * 8:
            logger.warning("candidate batches are of one sample, which is compared with no other: "
                           "set per_device_train_batch_size to more")  # fmt: skip
        if self._step.is_dry(selection, signals):
            logger.warning(
                "nothing was selected of %d candidate batches in a row (policy %r)",
                DRY,
                self.policy.name,
            )
        skipped = int(selection.skipped.sum())
        if skipped:
            logger.warning("skipped %d non-finite samples", skipped)
        if task is not None:
            self._step.tasks.update(task.tolist())
        if self._on_event is not None:
            event = selection_event(selection, signals, task, item, statistics(self.policy))
            event["batch"] = self.selection_counts.batches - 1
            event["step"] = self.state.global_step + 1
            event["seconds"] = seconds
            self._on_event(event)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        counts, step = self.selection_counts, self._step
        if "loss" in logs and step.steps:
            if step.trained:
                logs["loss"] *= step.steps / step.trained  # steps without a sample have no loss
            else:
                del logs["loss"]
            step.steps = step.trained = 0
            selected, candidates, skipped = self._over_processes(
                [counts.selected, counts.candidates, counts.skipped]
            ).sum(dim=0).tolist()  # fmt: skip
            logs.update(
                selected=selected,
                candidates=candidates,
                ratio=selected / max(1, candidates),
                skipped=skipped,
                **statistics(self.policy),
            )
        if "train_loss" in logs and step.all_trained:
            logs["train_loss"] *= step.all_steps / step.all_trained
        super().log(logs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any):
        try:
            output = super().train(*args, **kwargs)
        except BaseException:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, SelectionProgress):
                    callback.close()
            raise
        loss = output.metrics.get("train_loss", output.training_loss)  # as `log` has left it
        return output._replace(training_loss=loss)

    # ---- checkpoints ----

    def save_selection_state(self, checkpoint: str) -> None:
        """Write policy and counts into a checkpoint, one file for each process."""
        self._selection.save(checkpoint)

    def begin_selection(self) -> None:
        """A training begins that goes on from no checkpoint: nothing is left of earlier ones."""
        self._selection.anew()
        self._step.anew()
        self._head, self._inspected, self._grads = None, False, SampleGradients()

    def restore(self, checkpoint: str) -> None:
        """Take weights, policy and counts from a checkpoint, without training on from there."""
        transformers_private.load_weights(self, checkpoint)
        self._selection.load(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))

    def resume_selection(self, checkpoint: str) -> TrainOutput | None:
        """Take policy and counts from a checkpoint; its result where the training is over there."""
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        # The Trainer would begin the stream again, and train past the end.
        if 0 < self.args.max_steps <= state.global_step:
            self.restore(checkpoint)
            self.is_in_train = False
            return TrainOutput(state.global_step, 0.0, {})
        self.begin_selection()
        self._selection.load(checkpoint)
        return None


class SelectionTrainer(SelectionMixin, Trainer):
    """`transformers.Trainer` with selection; see `SelectionMixin` for its arguments."""
