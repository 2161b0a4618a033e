"""Batches of encoded samples with their images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oasis.lab.data.encoding import Collator
from oasis.lab.data.llava import Conversation
from oasis.lab.data.pictures import Picture, open_all
from oasis.lab.data.processed import Row, image_tensors, process
from oasis.train.batch.images import IMAGE_KEYS

# Numbers of tokens that some models ask for, 0 for text, of samples without images too.
KINDS = ("token_type_ids", "mm_token_type_ids")


class ImageCollator:
    """`Collator`, and beside its batch the image tensors that the processor makes: anew at every
    call, since they are large, unless an item has them as "vision".

    Items with "images" (objects with "path" and "bytes") have the "turns" that the images stand
    in, as JSON, and their "key". Their tokens may end anywhere behind the images: a prompt, or
    another answer.
    """

    def __init__(self, processor: Any, pad_token_id: int) -> None:
        self.processor = processor
        self._pad = Collator(pad_token_id, "right")

    def __call__(self, items: Sequence[dict]) -> dict[str, Tensor]:
        batch = self._pad(items)
        rows = [self._row(item) for item in items]
        kinds = [kind for kind in KINDS if kind in self.processor.model_input_names]
        length = batch["input_ids"].shape[1]
        for key in dict.fromkeys([*kinds, *(k for row in rows for k in row)]):
            if key not in IMAGE_KEYS and key not in batch:
                batch[key] = torch.stack([_fill(row.get(key), length) for row in rows])
        return {**batch, **image_tensors(rows)}

    def _row(self, item: dict) -> Row:
        """What the processor makes of the images, and one number for each of the item's tokens."""
        row = item.get("vision")
        if row is None and item.get("images"):
            pictures = tuple(Picture(one["path"], one["bytes"]) for one in item["images"])
            images, _ = open_all(pictures, item["key"])
            turns = tuple(map(tuple, json.loads(item["turns"])))
            row = process(self.processor, Conversation("", (), turns).messages(images))
        if row is None:
            return {}
        self._check(item, row["input_ids"])
        own = len(item["input_ids"])
        return {
            key: value if key in IMAGE_KEYS else value[:own]
            for key, value in row.items()
            if key not in ("input_ids", "attention_mask", "labels")
        }

    def _check(self, item: dict, ids: Tensor) -> None:
        """The images take the tokens that they took when they were read."""
        token = getattr(self.processor, "image_token_id", None)
        if token is None:
            return
        images = (ids == token).nonzero()
        end = int(images[-1]) + 1 if len(images) else 0
        if item["input_ids"][:end] != ids[:end].tolist():
            raise ValueError(f"{item['key']}: the images are not those that were read at first")


def _fill(values: Tensor | None, length: int) -> Tensor:
    """[length], 0 where there is nothing."""
    out = torch.zeros(length, dtype=torch.long)
    if values is not None:
        out[: len(values)] = values
    return out
