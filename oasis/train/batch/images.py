"""Which images of a batch belong to which of its samples.

Processors put the images of all samples one behind another: LLaVA's `pixel_values` has one row per
image, Qwen-VL's one row per patch, with `image_grid_thw` [images, 3] giving the patches of each.
A row of such a tensor is no sample, even where there happen to be as many of both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.train.batch.columns import COUNTS

IMAGE_KEYS = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask")


def count_images(batch: dict, config) -> dict:
    """`batch` with `COUNTS` [N] where its images lie one behind another, else as it is.

    Counted by the image tokens of `input_ids` (`config.image_token_id`): exact where an image takes
    as many tokens as its grid or every other image, or where there are as many images as samples
    with image tokens. A batch that has the counts already keeps them.

    Raises:
        ValueError: tokens and images don't agree, or the tokens don't tell (images of any size
            and several in a sample): the collator has to give `COUNTS` then.
    """
    token = getattr(config, "image_token_id", None)
    token = getattr(config, "image_token_index", None) if token is None else token
    given = batch.get(COUNTS)
    if not _one_behind_another(batch):
        return {key: value for key, value in batch.items() if key != COUNTS}
    if given is not None:
        _check(batch, given)
        return batch
    if token is None or "input_ids" not in batch:
        return batch  # nothing to count by: rows are taken for samples, and checked to be as many
    tokens = (batch["input_ids"] == token).sum(dim=1)
    images, grid = _number(batch), batch.get("image_grid_thw")
    if int((tokens > 0).sum()) == images:
        counts = (tokens > 0).long()
    elif grid is not None:
        counts = _by_size(tokens, grid.prod(dim=1))
    elif "image_sizes" in batch:
        counts = None  # sizes differ, and what they mean in tokens differs by model
    else:
        counts = _by_size(tokens, tokens.new_ones(images))
    if counts is None:
        raise ValueError(
            f"pixel_values: got {images} images for samples with {tokens.tolist()} image tokens, "
            f"which does not tell whose they are; expected the number of images of each sample as "
            f"batch[{COUNTS!r}] [{len(tokens)}] (int64) from the collator"
        )
    return {**batch, COUNTS: counts}


def image_rows(batch: dict, rows: Tensor) -> dict[str, Tensor]:
    """For each image tensor in a batch with `COUNTS`, the indices of its rows that belong to
    the samples `rows`, in their order; nothing for other batches.
    """
    if COUNTS not in batch:
        return {}
    images = _spans(batch[COUNTS], rows)
    found = {key: images for key in IMAGE_KEYS if key in batch}
    grid = batch.get("image_grid_thw")
    if grid is not None:
        found["pixel_values"] = _spans(grid.prod(dim=1), images)
    return found


def _spans(sizes: Tensor, groups: Tensor) -> Tensor:
    """Indices of the members of `groups`, where groups of the given sizes lie one behind another.

    >>> _spans(torch.tensor([2, 0, 3]), torch.tensor([2, 0]))
    tensor([2, 3, 4, 0, 1])
    """
    ends = sizes.cpu().cumsum(0)
    starts = (ends - sizes.cpu()).tolist()
    spans = [torch.arange(starts[g], int(ends[g])) for g in groups.tolist()]
    return torch.cat([torch.empty(0, dtype=torch.int64), *spans])


def _one_behind_another(batch: dict) -> bool:
    """Idefics and Mllama have [N, images, ...] instead, whose rows are samples."""
    pixels = batch.get("pixel_values")
    if pixels is None:
        return False
    return pixels.ndim == 4 or "image_grid_thw" in batch or "image_sizes" in batch


def _number(batch: dict) -> int:
    return len(batch["image_grid_thw" if "image_grid_thw" in batch else "pixel_values"])


def _by_size(tokens: Tensor, sizes: Tensor) -> Tensor | None:
    """Images [N] of samples with so many image tokens [N], where every image has tokens in one
    proportion to its size [images]; None where a sample's tokens end inside an image.
    """
    # Cross-multiplied, so that nothing is rounded.
    ends = sizes.cumsum(0) * tokens.sum()
    wanted = tokens.cumsum(0) * sizes.sum()
    after = torch.searchsorted(ends, wanted, right=True)  # images that end by each sample's end
    last = ends[(after - 1).clamp(min=0)]
    if wanted[-1] == 0 or ((last != wanted) & (wanted > 0)).any():
        return None
    return after.diff(prepend=after.new_zeros(1))


def _check(batch: dict, counts: Tensor) -> None:
    num, images = len(batch["labels"]), _number(batch)
    if counts.shape != (num,) or counts.dtype != torch.int64 or int(counts.sum()) != images:
        raise ValueError(
            f"batch[{COUNTS!r}]: got {counts.tolist()} ({counts.dtype}), expected the number of "
            f"images of each of the {num} samples (int64), {images} in all"
        )
