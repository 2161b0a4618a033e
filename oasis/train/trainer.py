"""Selection inside `transformers.Trainer`: choose in `get_batch_samples`, own the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import has_length
from transformers.utils import logging

from oasis import Selection, Selector, policies
from oasis.train import transformers_private
from oasis.train.batch import packed
from oasis.train.batch.columns import ITEM, TASK, WEIGHT
from oasis.train.batch.images import COUNT_KEYS, count_images
from oasis.train.batch.rows import as_rows
from oasis.train.batch.subbatch import Nothing, dummy, padding, right_padded, take, targets
from oasis.train.callbacks import SelectionHooks, SelectionProgress
from oasis.train.candidates import ScoredCandidates
from oasis.train.checkpoints import SelectionCheckpoints
from oasis.train.events import (
    DRY,
    LOOK,
    Counts,
    Shares,
    StepState,
    label_tokens,
    moment,
    seconds_between,
    selection_event,
    statistics,
)
from oasis.train.fill import Fill, check_mode, planned_steps
from oasis.train.last_scores import check_rescore, items_of
from oasis.train.models import forward_parameters, unwrap
from oasis.train.names import LAYERS
from oasis.train.reasons import short_answers
from oasis.train.refusals import check_arguments, check_order, check_trainer
from oasis.train.scoring import check_apart
from oasis.train.signals.parts import check_packed
from oasis.train.state import SelectionState, keep_selectors_apart
from oasis.train.steps import SelectedSteps

logger = logging.get_logger(__name__)


class SelectionMixin(SelectionCheckpoints, ScoredCandidates, SelectedSteps):
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
        mode: "step" (the default, the paper's): each optimizer step trains on what is selected of
            its candidate batches, which may be nothing; or "fill": selected samples wait until the
            training batches of a step are full, so that every step trains and the schedule counts
            those. There are `max_steps` such steps, or as many as the ratio makes of the epochs;
            the candidates are gone through as often as that takes, and what still waits at the end
            is not trained on.
        reuse_forward: under activation checkpointing, train on what the scoring forward has already
            computed of the selected samples: their blocks run in the backward pass alone, to the
            same losses and gradients. Keeps what every block gives of the candidates, and of the
            selected until they are trained on (docs/training.md). Without dropout, mode "step".
        score_batch_size: candidates are sorted by length and scored so many at a time, each part
            only as long as its longest row: the same scores, less padding. None: all at once.
        score_depth: score by the output of the first so many blocks, through the model's last norm
            and head: cheaper scores, which may rank otherwise (docs/cost.md). None: all blocks.
        score_with: a causal language model of the same tokenizer that does the scoring forward in
            place of the trained one: smaller, in fewer bits, or a copy of how that began. It is
            frozen, on every process whole, and in no checkpoint (docs/training.md).
        rescore: of the candidates of a batch that have been scored before (by "oasis_item"), the
            share that is scored again, those with the highest last scores; the others are no
            candidates this time. None: all.
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
        mode: str = "step",
        reuse_forward: bool = False,
        score_batch_size: int | None = None,
        score_depth: int | None = None,
        score_with: torch.nn.Module | None = None,
        rescore: float | None = None,
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
        check_mode(mode, self.args, policy)
        self._begin_scoring(
            policy, mode, layer, reuse_forward, score_batch_size, score_depth, score_with
        )
        self._on_event = on_event
        rank = self.args.process_index
        seed, processes = self.args.seed + rank, self.args.world_size
        fill = Fill() if mode == "fill" else None
        last = check_rescore(rescore, policy, reuse_forward)
        self._begin_steps(StepState(), SelectionState(policy, rank, processes, seed, fill, last))
        self._given_steps = self.args.max_steps
        keep_selectors_apart(self.model)
        self.add_callback(SelectionHooks(policy, self._step, on_event, mode))
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
        before = self.selection_counts.selected
        self._step.begin()
        if self._selection.fill is None:
            batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
            chosen = [self._select(batch) for batch in batches]
        else:
            chosen = self._filled(self._selection.fill, num_batches)
        tokens = [int(targets(batch["labels"]).sum()) for batch in chosen]
        training = int(self._over_processes([sum(tokens) > 0]).sum())
        num_items = transformers_private.count_label_tokens(self, chosen, device)
        samples = self.selection_counts.selected - before
        if self._selection.fill is not None:
            samples = sum(len(batch["labels"]) for batch in chosen)
        self._step.start(samples, tokens, training, self.args.world_size)
        return chosen, num_items

    def _filled(self, fill: Fill, count: int) -> list[dict]:
        """Full training batches of what is selected of as many candidate batches as that takes."""

        def select(batch: dict) -> dict | None:
            chosen = self._select(batch)
            return None if isinstance(chosen, Nothing) else chosen

        size = transformers_private.batch_size(self)
        loader = transformers_private.train_loader(self)
        return fill.batches(count, size, loader, select, self._everywhere)

    def plan_steps(self, batch_size: int) -> None:
        """With mode="fill", say how many steps `num_train_epochs` are."""
        if self._selection.fill is None or self._given_steps > 0:
            return
        if not has_length(self.train_dataset):
            raise ValueError(
                "max_steps: got none, expected the number of steps for a data set without a length"
            )
        rows = len(self.train_dataset)
        self.args.max_steps = planned_steps(self.args, self.policy, rows, batch_size)

    def _select(self, batch: dict) -> dict:
        if batch.get("labels") is None:
            raise ValueError(f"batch: got keys {sorted(batch)}, expected 'labels' among them")
        start = moment(self.args.device)
        batch = transformers_private.prepare_inputs(self, batch)
        task, item = batch.pop(TASK, None), batch.pop(ITEM, None)
        given = batch = as_rows(self.model, self._of_use(batch))
        several = packed.is_packed(batch)
        if several and self._selection.fill is not None:
            raise ValueError(
                "mode: got 'fill', but the batches are rows of several sequences, of which any "
                "number makes a full one; expected mode='step' or batches that are not packed"
            )
        if several:
            check_packed(self.score_batch_size, self.accelerator.distributed_type.value)
            batch = packed.unpacked(batch)
            task = item = None  # were of whole rows
            if not self._inspected:
                check_apart(self.model, batch, given)
        batch = right_padded(count_images(batch, unwrap(self.model).config))
        if not self._inspected:
            self._inspect(batch)
        signals, kept = self._signals(batch, task, item)
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
        if self._selection.last is not None:
            judged = label_tokens(signals) > 0
            self._selection.last.keep(items_of(item), judged, selection, self.policy.name)
        rows = mask.nonzero().flatten()
        weight = self._weight(selection, mask)
        if len(rows):
            chosen = take({**batch, **kept}, rows)
            if weight is not None:
                labels = chosen["labels"]
                chosen[WEIGHT] = weight[rows].to(labels.device).unsqueeze(1).expand_as(labels)
        else:
            # NaN activations would turn the zero gradients of a dummy into NaN.
            usable = (~selection.skipped).nonzero().flatten().tolist()
            chosen = dummy(batch, usable[0] if usable else 0)
        if self._selection.fill is None:
            for key in COUNT_KEYS:
                chosen.pop(key, None)
        if several:
            chosen = type(chosen)(packed.packed(chosen, given))
        seconds = seconds_between(start, moment(self.args.device))
        self._step.shares.add(Shares(0.0, seconds, batch["labels"].numel(), padding(batch)))
        self._account(selection, signals, task, item, seconds)
        return chosen

    def _of_use(self, batch: dict) -> dict:
        """The keys that the model's forward takes; all that a loss of another's may ask for."""
        if not self._own_loss:
            return dict(batch)
        known = forward_parameters(self.model) | {"labels", *COUNT_KEYS}
        if packed.is_packed(batch):
            known |= packed.KEYS
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
        if self.compute_loss_func is not None or not self._own_loss:
            whose = "compute_loss_func" if self.compute_loss_func else self._owner.__name__
            raise ValueError(
                f"policy {self.policy.name!r} weighs samples, which the loss of {whose} cannot "
                "see; expected SelectionTrainer with its own loss, or a policy without weights"
            )
        return weight

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
        if counts.batches == LOOK:
            ours = counts.selected, counts.selected_tokens
            all_of_them = counts.candidates, counts.candidate_tokens
            hint = short_answers(self.policy, *ours, *all_of_them)
            if hint is not None:
                logger.warning(hint)
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
            if self._selection.last is not None:  # a row without a label is not scored either
                event["unscored"] = (label_tokens(signals) == 0).nonzero().flatten().tolist()
            self._on_event(event)

    # ---- checkpoints ----

    def begin_selection(self) -> None:
        """A training begins: nothing is left of earlier ones."""
        self._selection.anew()
        self._step.anew()
        self._score_anew()


class SelectionTrainer(SelectionMixin, Trainer):
    """`transformers.Trainer` with selection; see `SelectionMixin` for its arguments."""
