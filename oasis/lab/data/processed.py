"""Conversations as tensors, by the processor of a vision-language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oasis.names import IGNORED
from oasis.train.batch.columns import COUNTS
from oasis.train.batch.images import IMAGE_KEYS

Row = dict[str, Tensor]  # of a sample: tensors [L] by key, image tensors as the processor has them


def process(processor: Any, messages: list[dict], **options: Any) -> Row:
    """What `processor.apply_chat_template` makes of one conversation."""
    made = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", **options
    )
    length = made["input_ids"].shape[1]
    row = {}
    for key, value in made.items():
        if key not in IMAGE_KEYS and value.shape != (1, length):
            raise ValueError(
                f"processor: got {key!r} of shape {list(value.shape)}, expected one number for "
                f"each of the {length} tokens, or an image tensor ({', '.join(IMAGE_KEYS)})"
            )
        row[key] = value if key in IMAGE_KEYS else value[0]
    return row


def labelled(processor: Any, messages: list[dict], where: str) -> Row:
    """`process` of a conversation, and "labels" [L] on what the assistant says: what its turns add
    to the tokens that ask for them, the mark at their end included.

    Raises:
        ValueError: beginning with `where`, for a chat template that writes earlier turns anew.
    """
    whole = process(processor, messages)
    ids = whole["input_ids"]
    labels = torch.full_like(ids, IGNORED)
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = process(processor, messages[:at], add_generation_prompt=True)["input_ids"]
        last = at + 1 == len(messages)
        answered = ids if last else process(processor, messages[: at + 1])["input_ids"]
        if not (ids[: len(asked)].equal(asked) and ids[: len(answered)].equal(answered)):
            raise ValueError(
                f"{where}: the processor's chat template does not write turn {at} as the "
                "continuation of those before it, so its tokens can't be found; expected a "
                "template that only appends"
            )
        labels[len(asked) : len(answered)] = answered[len(asked) :]
    token = getattr(processor, "image_token_id", None)
    if token is not None:  # an answer may hold an image, which is not for the model to predict
        labels[ids == token] = IGNORED
    return {**whole, "labels": labels}


def image_tensors(rows: Sequence[Row]) -> Row:
    """The image tensors of a batch, and "oasis_num_images" [N] where images lie one behind another
    (see `oasis.train.batch.images`).
    """
    batch: Row = {}
    for key in IMAGE_KEYS:
        parts = [row[key] for row in rows if key in row]
        if not parts:
            continue
        if _by_sample(rows, key):
            parts = _with_empty([row.get(key) for row in rows], parts[0])
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError(
                f"{key}: got images of shapes {[list(part.shape) for part in parts]}, expected "
                "such that can be put one behind another; let the processor resize to one size"
            )
        batch[key] = torch.cat(parts)
    if "pixel_values" in batch and not _by_sample(rows, "pixel_values"):
        counted = "image_grid_thw" if "image_grid_thw" in batch else "pixel_values"
        batch[COUNTS] = torch.tensor([len(row.get(counted, ())) for row in rows])
    return batch


def _by_sample(rows: Sequence[Row], key: str) -> bool:
    """Whether dimension 0 is the sample: [1, images, ...] for each, as Idefics 3 has it."""
    if key not in ("pixel_values", "pixel_attention_mask"):
        return False
    if any("image_sizes" in row for row in rows):  # [images, tiles, ...] of LLaVA-NeXT
        return False
    return any(row["pixel_values"].ndim == 5 for row in rows if "pixel_values" in row)


def _with_empty(parts: Sequence[Tensor | None], like: Tensor) -> list[Tensor]:
    """One part [1, most images, ...] for each sample; models leave out images of zeros."""
    most = max(part.shape[1] for part in parts if part is not None)
    filled = []
    for part in parts:
        own = like[:, :0] if part is None else part
        rest = own.new_zeros(1, most - own.shape[1], *own.shape[2:])
        filled.append(torch.cat([own, rest], dim=1))
    return filled
