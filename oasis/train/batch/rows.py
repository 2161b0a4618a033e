"""Batches of all kinds of models by the names and shapes of a causal language model's.

Inside the trainer a batch is rows of tokens, `input_ids` [N, L], with `labels` [N, L] of which each
is predicted one position earlier. Two kinds of models have it otherwise:

- An encoder-decoder's `labels` are predicted at their own position. What its decoder is given is
  taken for the row, with one more position, and what its encoder is given keeps its name behind
  `ENCODER`, so that nobody takes an entry of it for one of a token of the row.
- Qwen-VL's `position_ids` are [3, N, L]; inside they are `POSITIONS` [N, L, 3].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oasis.names import IGNORED
from oasis.train.batch.columns import ENCODER, POSITIONS
from oasis.train.models import base_model, is_encoder_decoder

DECODER = ("labels", "decoder_input_ids", "decoder_attention_mask")


def has_encoder(batch: dict) -> bool:
    """Whether `as_rows` has made a batch of an encoder-decoder's."""
    return any(key.startswith(ENCODER) for key in batch)


def as_rows(model: nn.Module, batch: dict) -> dict:
    """`batch`, as a collator makes it for `model`, as rows; those as they are.

    Raises:
        ValueError: an encoder-decoder's batch with `decoder_inputs_embeds`.
    """
    labels, positions = batch["labels"], batch.get("position_ids")
    if (
        isinstance(positions, Tensor)
        and positions.ndim == 3
        and positions.shape[1:] == labels.shape
    ):
        batch = {key: value for key, value in batch.items() if key != "position_ids"}
        batch[POSITIONS] = positions.permute(1, 2, 0)
    if is_encoder_decoder(model) and not has_encoder(batch):
        return _of_decoder(model, batch)
    return batch


def as_given(batch: dict) -> dict:
    """What `as_rows` was given, of the rows that are left."""
    out = _for_model(batch)
    if has_encoder(batch):
        out["labels"] = batch["labels"][:, 1:]
        out["decoder_input_ids"] = out["decoder_input_ids"][:, :-1]
    return out


def for_forward(batch: dict) -> dict:
    """What the model's forward is to be given of rows, by its names; of an encoder-decoder no mask
    of the row, to the right of which no decoder looks.
    """
    out = _for_model(batch)
    out.pop("labels", None)
    return out


def _for_model(batch: dict) -> dict:
    out = dict(batch)
    if POSITIONS in out:
        out["position_ids"] = out.pop(POSITIONS).permute(2, 0, 1)
    if not has_encoder(batch):
        return out
    encoder = {key[len(ENCODER) :]: v for key, v in batch.items() if key.startswith(ENCODER)}
    return {**encoder, "decoder_input_ids": batch["input_ids"]}


def _of_decoder(model: nn.Module, batch: dict) -> dict:
    if batch.get("decoder_inputs_embeds") is not None:
        raise ValueError(
            "batch['decoder_inputs_embeds']: got a tensor, expected labels, from which the "
            "decoder's inputs are made, or 'decoder_input_ids'"
        )
    labels, ids = batch["labels"], batch.get("decoder_input_ids")
    mask = batch.get("decoder_attention_mask")
    pad = base_model(model).config.pad_token_id or 0
    last = labels[:, -1:].masked_fill(labels[:, -1:] == IGNORED, pad)
    ids = _shifted(model, labels, pad) if ids is None else ids
    none = torch.full_like(last, IGNORED)
    rows: dict[str, Any] = {
        "labels": torch.cat([none, labels], dim=1),
        "input_ids": torch.cat([ids, last], dim=1),
    }
    if mask is None:  # as far as the last label
        after = (rows["labels"] != IGNORED).flip(1).cumsum(dim=1).flip(1)
        after[:, 0] = 1
        mask = (after > 0).long()
    else:
        mask = torch.cat([mask, mask[:, -1:]], dim=1)
    rows["attention_mask"] = mask
    rows.update({ENCODER + key: value for key, value in batch.items() if key not in DECODER})
    return rows


def _shifted(model: nn.Module, labels: Tensor, pad: int) -> Tensor:
    """What the model makes its decoder's inputs of: a start token, then the labels but the last."""
    base = base_model(model)
    make = getattr(base, "prepare_decoder_input_ids_from_labels", None)
    if make is not None:
        return make(labels)
    ids = labels.roll(1, dims=1)
    ids[ids == IGNORED] = pad
    ids[:, 0] = base.config.decoder_start_token_id
    return ids
