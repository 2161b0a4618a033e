"""Means of hidden states: what the clustering policies see of a sample."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from oasis.train.models import unwrap


def attended(batch: dict) -> Tensor:
    """[N, L] bool: the positions that are not padding; all of them without an attention mask."""
    labels, mask = batch["labels"], batch.get("attention_mask")
    if mask is None or mask.shape != labels.shape:
        return labels.new_ones(labels.shape).bool()
    return mask != 0


def mean_over(hidden: Tensor, where: Tensor) -> Tensor:
    """Mean [N, D] float32 of `hidden` [N, L, D] over the positions `where` [N, L]; zeros where
    there are none. What is at other positions has no influence, not even NaN.
    """
    total = hidden.float().masked_fill(~where.unsqueeze(2), 0).sum(dim=1)
    return total / where.sum(dim=1, keepdim=True).clamp(min=1)


def image_positions(config, input_ids: Tensor) -> Tensor:
    """[N, L] bool: placeholders of images (or video), by the token ids the configuration names."""
    where = input_ids.new_zeros(input_ids.shape).bool()
    for name in ("image_token_id", "image_token_index", "video_token_id", "video_token_index"):
        token = getattr(config, name, None)
        if token is not None:
            where |= input_ids == token
    return where


def image_text_score(model: nn.Module, batch: dict, hidden: Tensor) -> Tensor | None:
    """Cosine [N] float32 of the mean hidden states of a sample's image and of its text.

    NaN for a sample without an image; None where no sample has one. (The sample's own model takes
    the place of the CLIP that web-scale filters ask.)
    """
    ids = batch.get("input_ids")
    if ids is None or ids.shape != batch["labels"].shape:
        return None
    images = image_positions(unwrap(model).config, ids)
    if not images.any():
        return None
    real = attended(batch)
    image, text = mean_over(hidden, images & real), mean_over(hidden, ~images & real)
    score = F.cosine_similarity(image, text, dim=1)
    return score.masked_fill(~(images & real).any(dim=1), float("nan"))
