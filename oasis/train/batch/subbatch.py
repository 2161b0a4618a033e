"""Cut the selected rows out of a candidate micro-batch without changing what they compute.

A batch is a dict of tensors with the samples in dimension 0; `labels` [N, L] follow the
convention of transformers: unshifted, -100 where nothing is to be predicted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oasis.names import IGNORED
from oasis.train.batch.columns import ENCODER
from oasis.train.batch.images import MEDIA_KEYS, drop_empty_images, image_rows


class Nothing(dict):
    """One row with no label, in place of a micro-batch of which nothing was selected."""


def targets(labels: Tensor) -> Tensor:
    """Positions [N, L] (bool) whose hidden state predicts a label token: t such that labels[t + 1]
    is not -100 (docs/method.md, notation: T_i).
    """
    mask = torch.zeros_like(labels, dtype=torch.bool)
    mask[:, :-1] = labels[:, 1:] != IGNORED
    return mask


def answers(labels: Tensor) -> Tensor:
    """[N] int64: a hash of the label tokens of each row of `labels` [N, L], in their order. Padding
    and what stands before them make no difference.
    """
    where = targets(labels)
    # A polynomial modulo 2^64 in an odd number (the multiplier of Knuth's 64-bit generator).
    powers = torch.full_like(labels[0], 6364136223846793005).cumprod(dim=0)
    place = (where.cumsum(dim=1) - 1).clamp(min=0)  # 0 for the first label token
    return ((labels.roll(-1, dims=1) + 1) * powers[place] * where).sum(dim=1)


def right_padded(batch: dict) -> dict:
    """`batch` with each row moved to the first column, its padding on the left to the right.

    No causal model looks to the right, whereas padding on the left attends to nothing and may come
    out as NaN, which 0 x NaN carries to every token of the row; and where positions are counted in
    columns (GPT-2), it shifts them. A label on that padding is dropped, and none is predicted by
    it. Without an `attention_mask` nothing is known of padding and nothing is moved.
    """
    labels, mask = batch["labels"], batch.get("attention_mask")
    if mask is None or mask.shape != labels.shape or 0 in labels.shape:
        return batch
    real = mask != 0
    shift = real.int().argmax(dim=1, keepdim=True)  # 0 in a row of padding alone
    if not shift.any():
        return batch
    length = labels.shape[1]
    column = torch.arange(length, device=labels.device) + shift
    moved = dict(batch)
    for key in per_token(batch):
        value = batch[key]
        index = (column % length).to(value.device)
        index = index.view(*index.shape, *[1] * (value.ndim - 2)).expand_as(value)
        moved[key] = value.gather(1, index)
    moved["labels"] = moved["labels"].masked_fill(column >= length, IGNORED)
    return moved


def padding(batch: dict) -> int:
    """Positions that are padding; 0 without an attention mask, where nothing is known of it."""
    labels, mask = batch["labels"], batch.get("attention_mask")
    return 0 if mask is None or mask.shape != labels.shape else int((mask == 0).sum())


def is_right_padded(mask: Tensor) -> bool:
    """Whether a mask is [N, L] of ones, and zeros behind them."""
    return mask.ndim == 2 and bool(
        ((mask == 0) | (mask == 1)).all() and (mask[:, 1:] <= mask[:, :-1]).all()
    )


def per_token(batch: dict) -> list[str]:
    """Keys of the tensors [N, L, ...] that have an entry for each token."""
    shape = batch["labels"].shape
    return [
        key
        for key, value in batch.items()
        if isinstance(value, Tensor)
        and value.shape[:2] == shape
        and key not in MEDIA_KEYS
        and not key.startswith(ENCODER)
    ]


def take(batch: dict, rows: Tensor | list[int]) -> dict:
    """Rows `rows` of every tensor and list, padded on the right (see `right_padded`), without the
    columns that are padding in all of them.

    A column is kept where one of them has a label, be it padding. Without an `attention_mask`
    nothing is known of padding and nothing is dropped.

    With "oasis_num_images" and "oasis_num_videos" (`images.count_images`) the rows' own images and
    videos come along; where they have none, those tensors are left out, as models want it.

    Raises:
        ValueError: a tensor of which dimension 0 is not the samples, or a list of another length.
    """
    num = len(batch["labels"])
    index = torch.as_tensor(rows, dtype=torch.int64)
    media = image_rows(batch, index)
    rows_of = {}
    for key, value in batch.items():
        if key not in media:
            rows_of[key] = _rows(key, value, index, num)
        elif len(media[key]) and isinstance(value, Tensor):
            rows_of[key] = value[media[key].to(value.device)]
        elif len(media[key]):
            rows_of[key] = [value[row] for row in media[key].tolist()]
    rows_of = right_padded(drop_empty_images(rows_of))
    labels, mask = rows_of["labels"], rows_of.get("attention_mask")
    labels[:, 0] = IGNORED  # nothing predicts it; some counts include it
    if mask is None or mask.shape != labels.shape:
        return rows_of
    used = ((mask != 0) | (labels != IGNORED)).any(dim=0).nonzero().flatten()
    if len(used) == 0:
        return rows_of
    end = int(used[-1]) + 1
    return rows_of | {key: rows_of[key][:, :end] for key in per_token(rows_of)}


def _rows(key: str, value: Any, index: Tensor, num: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor) and value.ndim and value.shape[0] == num:
        return value[index.to(value.device)]
    if isinstance(value, list) and len(value) == num:
        return [value[row] for row in index.tolist()]
    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(
        f"batch[{key!r}]: got {got}, expected a tensor with the {num} samples in "
        "dimension 0, so that rows can be selected"
    )


def dummy(batch: dict, row: int) -> Nothing:
    """One row with no label, for a micro-batch of which nothing was selected: where another process
    selected something, the same forward and backward calls take place on every one, and all
    gradients of this one come out zero. Where all tensors are one number per token, one attended
    token of the row is enough.
    """
    out = take(batch, [row])
    labels = out["labels"]
    length = labels.shape[1]
    each = per_token(out)
    if all(
        isinstance(v, Tensor) and (v.ndim == 1 or (key in each and v.ndim == 2))
        for key, v in out.items()
    ):
        attended = out["attention_mask"][0] if "attention_mask" in out else torch.ones(length)
        column = int(attended.ne(0).to(torch.int8).argmax())
        out = {k: v[:, column : column + 1] if v.ndim == 2 else v for k, v in out.items()}
    out["labels"] = torch.full_like(out["labels"], IGNORED)
    return Nothing(out)
