"""What a policy makes of a candidate batch, by the forward of a model that is not trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from oasis import Selection, policies
from oasis.lab import model as models
from oasis.lab.data.encoding import Collator
from oasis.lab.data.own.collate import ImageCollator
from oasis.lab.data.own.encoder import Encoder
from oasis.lab.data.own.tokens import Encoded
from oasis.lab.evaluate import Collate, pad_id
from oasis.policies.base import validation_rows
from oasis.train.batch.rehearsal import Rehearsal
from oasis.train.batch.subbatch import answers, targets
from oasis.train.head import Head
from oasis.train.reasons import Redundant, redundant
from oasis.train.scoring import inspect_head
from oasis.train.signals.compute import GRADS, GRAMS, compute
from oasis.train.signals.sample_grads import SampleGradients


class Scorer:
    """Scores candidate batches of samples that `encoder` encoded, and has `policy` choose.

    Policies that ask for gradients of trained weights (and `layer` "last_block") get those of a
    fresh LoRA on the model: what the first step of a training would see. Where the policy asks for
    nothing, `model` may be None.

    Raises:
        ValueError: there is no model, and the policy asks for something.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        encoder: Encoder,
        policy: policies.Policy,
        *,
        layer: str = "head",
        seed: int = 0,
    ) -> None:
        self.policy, self.layer = policy, layer
        self.model: nn.Module | None = model
        needs = frozenset(policy.needs)
        if model is None:
            if needs:
                raise ValueError(f"model: got None, expected one: the policy needs {sorted(needs)}")
        elif needs & GRADS or (layer == "last_block" and needs & GRAMS):
            self.model = models.attach_lora(model, rank=16, alpha=None, layers=None, seed=seed)
        self.pad = pad_id(encoder.tokenizer)
        self.collate: Collate = Collator(self.pad, "right")
        if encoder.processor is not None:
            self.collate = ImageCollator(encoder.processor, self.pad)
        self.device = torch.device("cpu") if model is None else model.device
        self.rehearsal = Rehearsal(seed=seed) if "validation" in needs else None
        self._head: Head | None = None
        self._grads = SampleGradients()

    def observe(self, rows: Sequence[Encoded]) -> tuple[Selection, policies.Signals]:
        """What the policy chose of `rows`, and what it knew of them."""
        batch = self.collate(
            [{"input_ids": row.ids, "labels": row.labels, "vision": row.vision} for row in rows]
        )
        batch = {name: values.to(self.device) for name, values in batch.items()}
        needs = frozenset(self.policy.needs)
        tokens = targets(batch["labels"]).sum(dim=1)
        known: dict[str, Any] = {}
        if needs:
            assert self.model is not None  # as was seen to when this was made
            if self._head is None or not self._head.verified:
                self._head = inspect_head(self.model, batch)
            scored = batch
            if self.rehearsal is not None:
                extra = validation_rows(self.policy)
                scored = self.rehearsal.beside(batch, extra, pad_token_id=self.pad)
            known = compute(
                self.model, scored, self._head, needs, len(rows), self._grads, self.layer
            )
        answer = answers(batch["labels"])
        signals = policies.Signals(len(rows), tokens=tokens, answer=answer, **known)
        return self.policy.observe(signals), signals

    def state_dict(self) -> dict[str, Any]:
        """What later batches depend on."""
        rehearsal = {} if self.rehearsal is None else self.rehearsal.state_dict()
        return {"policy": dict(self.policy.state_dict()), "rehearsal": rehearsal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        if self.rehearsal is not None:
            self.rehearsal.load_state_dict(state["rehearsal"])


def reasons(
    selection: Selection, signals: policies.Signals, keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Of each row: "kept", "score" (informativeness), "z" (relative), and "why" it was not kept.

    "redundant" (see `oasis.train.reasons`): "with" the kept row whose gradient is most like its
    own, at "cosine"; "shared" is how much of its informativeness was taken off. "low": it is not.
    "not picked": the policy says nothing of scores.
    """
    kept, skipped = selection.mask.tolist(), selection.skipped.tolist()
    score, z = (
        None if values is None else values.tolist()
        for values in (selection.informativeness, selection.relative)
    )
    twins = redundant(selection, signals)
    found = []
    for row, key in enumerate(keys):
        line: dict[str, Any] = {"key": key, "kept": kept[row]}
        line["score"] = None if score is None else score[row]
        line["z"] = None if z is None else z[row]
        if kept[row]:
            if selection.weight is not None:
                line["weight"] = float(selection.weight[row])
        elif skipped[row]:
            line["why"] = "its score is not finite"
        elif twins is None:
            line["why"] = "not picked"
        else:
            line |= _why(twins[row], keys)
        found.append(line)
    return found


def _why(twin: Redundant | None, keys: Sequence[str]) -> dict[str, Any]:
    if twin is None:
        return {"why": "low"}
    return {
        "why": "redundant",
        "with": keys[twin.pick],
        "cosine": round(twin.cosine, 4),
        "shared": round(twin.shared, 4),
    }
