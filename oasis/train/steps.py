"""The steps of a training with selection: their loss, what is left out, what is logged."""

from __future__ import annotations

from typing import Any

import torch

from oasis.train import transformers_private
from oasis.train.batch.columns import ITEM, TASK
from oasis.train.batch.rows import as_given
from oasis.train.batch.subbatch import Nothing
from oasis.train.callbacks import SelectionProgress
from oasis.train.events import Shares, StepState, statistics
from oasis.train.head import Head
from oasis.train.loss import loss_owner, router_loss, summed_cross_entropy
from oasis.train.processes import Processes
from oasis.train.reuse import ForwardReuse
from oasis.train.state import SelectionState


class SelectedSteps(transformers_private.PrivateHooks, Processes):
    """What `SelectionMixin` does once the samples are chosen."""

    _step: StepState
    _selection: SelectionState
    _head: Head | None
    _reuse: ForwardReuse

    def _begin_steps(self, state: StepState, selection: SelectionState) -> None:
        self._step, self._selection, self._head = state, selection, None
        self._owner = loss_owner(type(self), SelectedSteps)
        if self._own_loss and self.compute_loss_func is None:
            # `compute_loss` divides by num_items_in_batch itself, whatever the model does with it.
            self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        transformers_private.labels_are_shifted(self)

    @property
    def _own_loss(self) -> bool:
        """Whether the loss is this one, and of no class before or behind it."""
        return self._owner is SelectedSteps

    def compute_loss(
        self, model, inputs, return_outputs=False, num_items_in_batch=None
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Summed cross-entropy over the label tokens, each times the weight of its sample where
        the selection has weights, / their number in the whole step (on all processes, with
        `average_tokens_across_devices`, times the number of those); or what the trainer behind
        this, or `compute_loss_func`, makes of the selected rows.
        """
        nothing = isinstance(inputs, Nothing)
        # Another's loss may gather something from all processes; alone it need not see a dummy.
        theirs = not self._own_loss and not (nothing and self.args.world_size == 1)
        with self._reuse.training(inputs) as inputs:
            if theirs or (self.compute_loss_func and not nothing):
                own = (TASK, ITEM)
                inputs = as_given({key: v for key, v in inputs.items() if key not in own})
                found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
                loss, outputs = found if isinstance(found, tuple) else (found, None)
            else:
                loss, outputs = self._cross_entropy(
                    model, inputs, return_outputs, num_items_in_batch
                )
        if nothing:
            loss = loss * 0  # a loss that needs no label: a router's balance
        whole = self.args.average_tokens_across_devices and num_items_in_batch is not None
        if model.training and not whole:
            loss = loss * self._step.process_factor  # DDP divides by all processes
        return (loss, outputs) if return_outputs else loss

    def _cross_entropy(self, model, inputs, return_outputs: bool, num_items_in_batch):
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
        if not self._step.trains:  # on any process
            return self.accelerator.scaler is None  # it wants to see gradients in every step
        counted = self.accelerator.distributed_type == "DEEPSPEED"  # steps when it has seen all
        return self.args.world_size == 1 and not counted

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        counts, step = self._selection.counts, self._step
        if "loss" in logs and step.steps:
            if step.trained:
                logs["loss"] *= step.steps / step.trained  # steps without a sample have no loss
            else:
                del logs["loss"]
            step.steps = step.trained = 0
            shares, step.all_shares = step.all_shares, Shares()
            amounts = [counts.selected, counts.candidates, counts.skipped]
            amounts += [1e6 * shares.seconds, 1e6 * shares.scoring]
            amounts += [shares.positions, shares.padding]
            selected, candidates, skipped, *rest = self._over_processes(amounts).sum(dim=0).tolist()
            shares = Shares(*rest)
            logs.update(
                selected=selected,
                candidates=candidates,
                ratio=selected / max(1, candidates),
                skipped=skipped,
                scoring_share=shares.scoring_share,
                padding_share=shares.padding_share,
                **statistics(self._selection.policy),
            )
            if self._selection.fill is not None:
                logs["waiting"] = len(self._selection.fill.rows)
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
