"""What a policy is told of a candidate batch: by which model, in how deep and large forwards."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn
from transformers.utils import logging

from oasis.policies import Policy, Signals
from oasis.policies.base import validation_rows
from oasis.train.batch.subbatch import answers, right_padded, take, targets
from oasis.train.beside import check_beside, check_inputs, frozen
from oasis.train.head import Head
from oasis.train.last_scores import items_of, spread
from oasis.train.models import is_compiled, text_config, unwrap
from oasis.train.processes import Processes
from oasis.train.refusals import check_model
from oasis.train.reuse import ForwardReuse, check_reuse, columns
from oasis.train.scoring import inspect_head
from oasis.train.signals.compute import compute, of_head
from oasis.train.signals.parts import by_length, check_cheaper, compute_in_parts, ending_after
from oasis.train.signals.sample_grads import SampleGradients
from oasis.train.state import SelectionState

logger = logging.get_logger(__name__)


class ScoredCandidates(Processes):
    """What `SelectionMixin` does before the samples are chosen."""

    _selection: SelectionState
    _head: Head | None  # of the trained model

    def _begin_scoring(
        self,
        policy: Policy,
        mode: str,
        layer: str,
        reuse_forward: bool,
        score_batch_size: int | None,
        score_depth: int | None,
        score_with: nn.Module | None,
    ) -> None:
        """Take the options of scoring, or refuse them (see `SelectionMixin`)."""
        needs = frozenset(policy.needs)
        if score_with is None:
            check_model(self.model, bool(needs), bool(of_head(needs, layer)))
        else:
            check_model(self.model, looks=False, scores=False)
            check_beside(self.model, score_with, policy, layer, reuse_forward)
        if reuse_forward:
            check_reuse(self, mode, scores=bool(needs))
        scorer = self.model if score_with is None else score_with
        check_cheaper(scorer, score_depth, score_batch_size, needs, layer)
        self.layer, self.reuse_forward = layer, reuse_forward
        self.score_batch_size, self.score_depth = score_batch_size, score_depth
        self.score_with = None if score_with is None else frozen(score_with, self.args.device)
        self._score_anew()

    def _score_anew(self) -> None:
        """As before any training."""
        self._head = self._score_head = None
        self._inspected = False  # on every process
        self._grads = SampleGradients()
        self._reuse = ForwardReuse(self.model, self.score_depth)

    def _inspect(self, batch: dict) -> None:
        if getattr(unwrap(self.model), "get_output_embeddings", lambda: None)() is None:
            self._head = Head(gather=False, verified=True)  # of a policy that scores nothing
        else:
            # Not through DDP: ranks may look at different numbers of rows, and DDP syncs buffers.
            self._head = inspect_head(self.model, batch, self._everywhere)
        if is_compiled(self.model_wrapped):
            self._head = replace(self._head, gather=False)  # no hook of ours is seen there
        elif self._head.verified and not self._head.gather:
            logger.warning(
                "%s needs all hidden states to compute logits: the loss computes every logit",
                type(unwrap(self.model)).__name__,
            )
        self._score_head = self._head
        if self.score_with is not None:
            check_inputs(self.model, self.score_with, batch)
            self._score_head = inspect_head(self.score_with, batch, self._everywhere)
        self._inspected = self._everywhere(self._head.verified and self._score_head.verified)

    def _signals(
        self, batch: dict, task: torch.Tensor | None, item: torch.Tensor | None = None
    ) -> tuple[Signals, dict]:
        """What the policy is told of a batch, and with `reuse_forward` what its blocks gave.

        With `rescore` candidates that are not scored again are told of as rows without a label.
        """
        policy, last = self._selection.policy, self._selection.last
        labels, needs = batch["labels"], frozenset(policy.needs)
        free = {"tokens": targets(labels).sum(dim=1), "answer": answers(labels), "task": task}
        if not needs:
            return Signals(len(labels), **free), {}
        scored = batch
        rows = torch.arange(len(labels)) if last is None else last.worth(items_of(item))
        if len(rows) < len(labels):
            scored = take(batch, rows)
            kept_out = torch.ones(len(labels), dtype=torch.bool).index_fill(0, rows, False)
            free["tokens"] = free["tokens"].masked_fill(kept_out.to(labels.device), 0)
        if self._selection.rehearsal is not None:
            pad = getattr(text_config(self.model), "pad_token_id", None) or 0
            earlier = validation_rows(policy)
            scored = self._selection.rehearsal.beside(scored, earlier, pad_token_id=pad)
        with self._reuse.keeping() if self.reuse_forward else nullcontext({}) as kept:
            known = self._scores(scored, needs, len(rows))
        if len(rows) < len(labels):
            known = spread(known, rows, len(labels))
        size = self.score_batch_size
        parts = by_length(right_padded(scored), size) if kept and size is not None else None
        # Rows of earlier batches are below those.
        return Signals(len(labels), **free, **known), columns(kept, labels.shape, parts)

    def score_and_forget(self, batch: dict) -> None:
        """What scoring a batch of candidates takes, for who measures it: nothing is chosen, and no
        state moves.
        """
        needs = frozenset(self._selection.policy.needs)
        if not self._inspected:
            self._inspect(batch)
        if needs:
            with self._reuse.keeping() if self.reuse_forward else nullcontext():
                self._scores(batch, needs, len(batch["labels"]))

    def _scores(self, batch: dict, needs: frozenset[str], count: int) -> dict:
        head, size, depth = self._score_head, self.score_batch_size, self.score_depth
        assert head is not None  # `_inspect` has been
        model = self.model_wrapped if self.score_with is None else self.score_with
        if size is None and depth is None:
            return compute(model, batch, head, needs, count, self._grads, self.layer)
        with ending_after(model, depth):
            return compute_in_parts(model, batch, head, needs, count, size)
