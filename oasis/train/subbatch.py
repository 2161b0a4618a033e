"""Cut the selected rows out of a candidate micro-batch without changing what they compute.

A batch is a dict of tensors with the samples in dimension 0; `labels` [N, L] follow the
convention of transformers: unshifted, -100 where nothing is to be predicted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .images import image_rows

IGNORE = -100
WEIGHT = "selection_weight"  # key of the rows' loss weights [N], where a selection has them


def targets(labels: Tensor) -> Tensor:
    """Positions [N, L] (bool) whose hidden state predicts a label token: t such that labels[t + 1]
    is not -100 (docs/method.md, notation: T_i).
    """
    mask = torch.zeros_like(labels, dtype=torch.bool)
    mask[:, :-1] = labels[:, 1:] != IGNORE
    return mask


def take(batch: dict, rows: Tensor | list[int], *, left: bool = False) -> dict:
    """Rows `rows` of every tensor, without the columns that are padding in all of them.

    Columns on the right are always dropped: nothing a causal model computes depends on them.
    Columns on the left go only with `left`, for models whose `position_ids` may be set to keep
    every token where it was. One padding column is kept where its hidden state predicts a label,
    as a plain step on the same rows would count it. Without an `attention_mask` nothing is known
    of padding and nothing is dropped.

    With "num_images" (`images.count_images`) the rows' own images come along; where they have none,
    the image tensors are left out, as models want it.

    Raises:
        ValueError: a tensor of which dimension 0 is not the samples.
    """
    num, length = batch["labels"].shape
    index = torch.as_tensor(rows, dtype=torch.int64)
    images = image_rows(batch, index)
    for key, value in batch.items():
        if key in images:
            continue
        if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != num:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"batch[{key!r}]: got {got}, expected a tensor with the {num} samples in "
                "dimension 0, so that rows can be selected"
            )
    rows_of = {}
    for key, value in batch.items():
        kept = images.get(key, index)
        if key not in images or len(kept):
            rows_of[key] = value[kept.to(value.device)]
    rows_of["labels"][:, 0] = IGNORE  # nothing predicts it; some counts include it
    mask = rows_of.get("attention_mask")
    if mask is None or mask.shape != rows_of["labels"].shape or len(index) == 0:
        return rows_of
    # A label on a padding column is still a target: such a column counts as used.
    used = ((mask != 0) | (rows_of["labels"] != IGNORE)).any(dim=0).nonzero().flatten()
    if len(used) == 0:
        return rows_of
    first, end = (int(used[0]) if left else 0), int(used[-1]) + 1
    if first > 0 and (rows_of["labels"][:, first] != IGNORE).any():
        first -= 1
    cut = {
        key: value[:, first:end]
        if value.ndim == 2 and value.shape[1] == length and key not in images
        else value
        for key, value in rows_of.items()
    }
    if left and first > 0 and "position_ids" not in cut:
        positions = torch.arange(first, end, device=cut["labels"].device)
        cut["position_ids"] = positions.expand(len(index), -1)
    return cut


def dummy(batch: dict, row: int) -> dict:
    """One row with no label, for a micro-batch of which nothing was selected: the same forward and
    backward calls take place on every rank, and all gradients come out zero. Where all tensors are
    one number per token, one attended token of the row is enough.
    """
    out = take(batch, [row])
    labels = out["labels"]
    length = labels.shape[1]
    if all(value.ndim == 1 or value.shape == labels.shape for value in out.values()):
        attended = out["attention_mask"][0] if "attention_mask" in out else torch.ones(length)
        column = int(attended.ne(0).to(torch.int8).argmax())
        out = {k: v[:, column : column + 1] if v.ndim == 2 else v for k, v in out.items()}
    out["labels"] = torch.full_like(out["labels"], IGNORE)
    return out
