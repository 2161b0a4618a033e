"""Selection inside `transformers.Trainer`: choose in `get_batch_samples`, own the loss."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
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
from oasis.train.batch.images import COUNTS, count_images
from oasis.train.batch.rehearsal import Rehearsal
from oasis.train.batch.subbatch import WEIGHT, answers, dummy, right_padded, take, targets
from oasis.train.callbacks import SelectionHooks, SelectionProgress
from oasis.train.events import Counts, StepState, selection_event, statistics
from oasis.train.loss import summed_cross_entropy
from oasis.train.scoring import Head, forward_parameters, inspect_head, text_config, unwrap
from oasis.train.signals.compute import LAYERS, compute
from oasis.train.signals.sample_grads import SampleGradients

logger = logging.get_logger(__name__)


class SelectionMixin(transformers_private.PrivateHooks):
    """Train on the samples of each micro-batch that a policy selects, and on no others.

    Put it in front of a trainer: `class MyTrainer(SelectionMixin, SFTTrainer)`. For a causal
    language model; batches are dicts of tensors with `input_ids`, `labels` (unshifted, -100 where
    nothing is predicted) and usually `attention_mask`; "task" and "item" [N] (int64) are logged.
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

    In a step that selects nothing anywhere the parameters do not move. Logged loss is the mean over
    the steps that trained; `train_loss` of the result is the Trainer's own, over all steps.
    """

    kept_columns = ("task", "item")

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
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process (DataParallel): start one process per GPU "
                "with torchrun, or show this one a single GPU (CUDA_VISIBLE_DEVICES)"
            )
        if getattr(unwrap(self.model), "get_output_embeddings", lambda: None)() is None:
            raise ValueError(
                f"model: got {type(self.model).__name__}, expected a causal language model with an "
                "output head (get_output_embeddings)"
            )
        if getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError("model: got an encoder-decoder, expected a causal language model")
        if getattr(self.model.config, "output_router_logits", False):
            logger.warning("the router's auxiliary loss is not part of the loss of this trainer")
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
        self.policy = policy
        self.layer = layer
        self.selection_counts = Counts()
        self._on_event = on_event
        self._step = StepState()
        self._head: Head | None = None
        self._grads = SampleGradients()
        self._rehearsal = None
        if "validation" in needs:
            self._rehearsal = Rehearsal(seed=self.args.seed + self.args.process_index)
        # `compute_loss` divides by num_items_in_batch itself, whatever the model does with it.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        transformers_private.labels_are_shifted(self)
        self.add_callback(SelectionHooks(policy, self._step, on_event))
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(SelectionProgress(self.selection_counts, self._step, task_names))

    # ---- selection ----

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Fetch `num_batches` micro-batches and return what is selected of each, and the number of
        selected label tokens, that the loss of all of them is divided by.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        before = self.selection_counts.selected
        self._step.tasks.clear()
        chosen = [self._select(batch) for batch in batches]
        tokens = sum(int(targets(batch["labels"]).sum()) for batch in chosen)
        anywhere = tokens
        if self.args.world_size > 1:
            anywhere = self.accelerator.gather(torch.tensor([tokens], device=device)).sum()
        num_items = transformers_private.count_label_tokens(self, chosen, device)
        self._step.start(self.selection_counts.selected - before, tokens, bool(anywhere > 0))
        return chosen, num_items

    def _select(self, batch: dict) -> dict:
        if batch.get("labels") is None:
            raise ValueError(f"batch: got keys {sorted(batch)}, expected 'labels' among them")
        start = time.perf_counter()
        batch = transformers_private.prepare_inputs(self, batch)
        task, item = batch.get("task"), batch.get("item")
        known = forward_parameters(self.model) | {"labels", COUNTS}
        batch = {key: value for key, value in batch.items() if key in known and value is not None}
        batch = right_padded(count_images(batch, unwrap(self.model).config))
        if self._head is None or not self._head.verified:
            self._inspect(batch)
        signals = self._signals(batch, task)
        selection = self.policy.observe(signals)
        if not isinstance(selection, Selection):
            raise TypeError(
                f"policy {self.policy.name!r}: observe returned {type(selection).__name__}, "
                "expected an oasis.Selection (policies.unscored(mask) makes one of a mask)"
            )
        mask = selection.mask.detach().cpu()
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
                chosen[WEIGHT] = weight[rows].to(chosen["labels"].device)
        else:
            # NaN activations would turn the zero gradients of a dummy into NaN.
            usable = (~selection.skipped).nonzero().flatten().tolist()
            chosen = dummy(batch, usable[0] if usable else 0)
        chosen.pop(COUNTS, None)
        self._account(selection, signals, task, item, time.perf_counter() - start)
        return chosen

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
        if self.compute_loss_func is not None:
            raise ValueError(
                f"policy {self.policy.name!r} weighs samples, which compute_loss_func cannot see"
            )
        return weight

    def _inspect(self, batch: dict) -> None:
        # Not through DDP: ranks may look at different numbers of rows, and DDP syncs buffers.
        self._head = head = inspect_head(self.model, batch)
        if head.verified and not head.gather:
            logger.warning(
                "%s needs all hidden states to compute logits: the loss computes every logit",
                type(unwrap(self.model)).__name__,
            )

    def _signals(self, batch: dict, task: torch.Tensor | None) -> policies.Signals:
        labels, needs = batch["labels"], frozenset(self.policy.needs)
        free = {"tokens": targets(labels).sum(dim=1), "answer": answers(labels), "task": task}
        if not needs:
            return policies.Signals(len(labels), **free)
        scored = batch
        if self._rehearsal is not None:
            pad = getattr(text_config(self.model), "pad_token_id", None) or 0
            rows = validation_rows(self.policy)
            scored = self._rehearsal.beside(batch, rows, pad_token_id=pad)
        known = compute(
            self.model_wrapped, scored, self._head, needs, len(labels), self._grads, self.layer
        )
        return policies.Signals(len(labels), **free, **known)

    # ---- loss ----

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Summed cross-entropy over the label tokens, each times the weight of its sample where
        the selection has weights, / their number in the whole step (on all processes, with
        `average_tokens_across_devices`, times the number of those).
        """
        if self.compute_loss_func is not None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, count, outputs = summed_cross_entropy(
            model,
            inputs,
            gather=not return_outputs and self._head is not None and self._head.gather,
            label_smoothing=self.args.label_smoothing_factor,
        )
        items = count if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(items, device=loss.device).clamp(min=1)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any):
        loss = super().training_step(*args, **kwargs)
        self._step.loss += loss
        return loss

    # ---- accounts ----

    def _account(self, selection, signals, task, item, seconds: float) -> None:
        self.selection_counts.add(selection, signals)
        counts = self.selection_counts
        if counts.batches == 8 and counts.candidates == 0:
            logger.warning("none of the first 8 candidate batches had a sample to train on: no "
                           "label other than -100, or scores that are not finite")  # fmt: skip
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
            logs.update(
                selected=counts.selected,
                candidates=counts.candidates,
                ratio=counts.ratio,
                skipped=counts.skipped,
                **statistics(self.policy),
            )
        super().log(logs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any):
        try:
            return super().train(*args, **kwargs)
        except BaseException:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, SelectionProgress):
                    callback.close()
            raise

    # ---- checkpoints ----

    def _state_file(self, checkpoint: str) -> str:
        return os.path.join(checkpoint, f"selection_state_{self.args.process_index}.pt")

    def save_selection_state(self, checkpoint: str) -> None:
        """Write policy and counts into a checkpoint, one file for each process."""
        state = {
            "name": self.policy.name,
            "policy": dict(self.policy.state_dict()),
            "counts": asdict(self.selection_counts),
        }
        if self._rehearsal is not None:
            state["rehearsal"] = self._rehearsal.state_dict()
        torch.save(state, self._state_file(checkpoint))

    def restore(self, checkpoint: str) -> None:
        """Take weights, policy and counts from a checkpoint, without training on from there."""
        transformers_private.load_weights(self, checkpoint)
        self._load_selection_state(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))

    def resume_selection(self, checkpoint: str) -> TrainOutput | None:
        """Take policy and counts from a checkpoint; its result where the training is over there."""
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        # The Trainer would begin the stream again, and train past the end.
        if 0 < self.args.max_steps <= state.global_step:
            self.restore(checkpoint)
            self.is_in_train = False
            return TrainOutput(state.global_step, 0.0, {})
        self._load_selection_state(checkpoint)
        return None

    def _load_selection_state(self, checkpoint: str) -> None:
        path = self._state_file(checkpoint)
        if not os.path.isfile(path):
            logger.warning("no %s: selection starts anew, not where it stopped", path)
            return
        state = torch.load(path, weights_only=True)
        if state["name"] != self.policy.name:
            raise ValueError(
                f"policy: got {self.policy.name!r}, but {path} was saved by {state['name']!r}"
            )
        self.policy.load_state_dict(state["policy"])
        for name, value in state["counts"].items():
            setattr(self.selection_counts, name, value)
        if self._rehearsal is not None and "rehearsal" in state:
            self._rehearsal.load_state_dict(state["rehearsal"])


class SelectionTrainer(SelectionMixin, Trainer):
    """`transformers.Trainer` with selection; see `SelectionMixin` for its arguments."""
