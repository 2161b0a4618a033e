"""Which images and videos of a batch belong to which of its samples.

Processors put the images of all samples one behind another: LLaVA's `pixel_values` has one row per
image, Qwen-VL's one row per patch, with `image_grid_thw` [images, 3] giving the patches of each.
A row of such a tensor is no sample, even where there happen to be as many of both. Videos likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oasis.train.batch.columns import COUNTS, VIDEO_COUNTS


@dataclass(frozen=True)
class Media:
    """Names of what a batch has of images, or of videos: the pixels, the sizes in patches, the
    number of each sample, all tensors with an entry for each, and the placeholder's settings.
    """

    what: str
    pixels: str
    grid: str
    counts: str
    keys: tuple[str, ...]
    tokens: tuple[str, ...]


IMAGE_KEYS = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask")
IMAGES = Media(
    "images",
    "pixel_values",
    "image_grid_thw",
    COUNTS,
    IMAGE_KEYS,
    ("image_token_id", "image_token_index"),
)
VIDEOS = Media(
    "videos",
    "pixel_values_videos",
    "video_grid_thw",
    VIDEO_COUNTS,
    ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"),
    ("video_token_id", "video_token_index"),
)
MEDIA = (IMAGES, VIDEOS)
COUNT_KEYS = tuple(media.counts for media in MEDIA)
MEDIA_KEYS = (*IMAGE_KEYS, *VIDEOS.keys)
CUT = (
    "of an iterable data set accelerate cuts all tensors of a batch to as many rows as samples, "
    'unless the arguments have accelerator_config={"dispatch_batches": False}'
)
UNBROKEN = ("llava_next", "llava_onevision")  # models with the tokens of an image in one run


def count_images(batch: dict, config) -> dict:
    """`batch` with `COUNTS` [N] where its images lie one behind another, `VIDEO_COUNTS` [N] where
    it has videos, else as it is.

    Counted by the image tokens of `input_ids` (`config.image_token_id`): exact where an image takes
    as many tokens as its grid or every other image, where there are as many images as samples with
    image tokens, or where the tokens of an image stand together and are apart from the next one's
    (LLaVA-NeXT). A batch that has the counts already keeps them.

    Raises:
        ValueError: tokens and images don't agree, or the tokens don't tell (images of any size
            and several in a sample): the collator has to give the counts then.
    """
    for media in MEDIA:
        batch = _counted(batch, config, media)
    return batch


def _counted(batch: dict, config, media: Media) -> dict:
    found = (getattr(config, name, None) for name in media.tokens)
    token = next((token for token in found if token is not None), None)
    given = batch.get(media.counts)
    if not _one_behind_another(batch, media):
        return {key: value for key, value in batch.items() if key != media.counts}
    _check_whole(batch, media)
    if given is not None:
        _check(batch, given, media)
        return batch
    if token is None or "input_ids" not in batch:
        return batch  # nothing to count by: rows are taken for samples, and checked to be as many
    where = batch["input_ids"] == token
    tokens, number, grid = where.sum(dim=1), _number(batch, media), batch.get(media.grid)
    counts = None
    if int((tokens > 0).sum()) == number:
        counts = (tokens > 0).long()
    elif grid is not None:
        counts = _by_size(tokens, grid.prod(dim=1))
    elif "image_sizes" not in batch:
        counts = _by_size(tokens, tokens.new_ones(number))
    # Else sizes differ, and what they mean in tokens differs by model.
    elif str(getattr(config, "model_type", "")).startswith(UNBROKEN):
        runs = _runs(where)
        counts = runs if int(runs.sum()) == number else None
    if counts is None:
        raise ValueError(
            f"{media.pixels}: got {number} {media.what} for samples with {tokens.tolist()} tokens "
            "of them, which does not tell whose they are; expected the number of "
            f"{media.what} of each sample as batch[{media.counts!r}] [{len(tokens)}] (int64) from "
            f"the collator; {CUT}"
        )
    return {**batch, media.counts: counts}


def image_rows(batch: dict, rows: Tensor) -> dict[str, Tensor]:
    """For each tensor of images (videos) in a batch with their counts, the indices of its rows
    that belong to the samples `rows`, in their order; nothing for other batches.
    """
    found: dict[str, Tensor] = {}
    for media in MEDIA:
        if media.counts not in batch:
            continue
        each = _spans(batch[media.counts], rows)
        found.update({key: each for key in media.keys if key in batch})
        grid = batch.get(media.grid)
        if grid is not None:
            found[media.pixels] = _spans(grid.prod(dim=1), each)
    return found


def of_rows(batch: dict) -> bool:
    """Whether the images of a batch are [N, images, C, H, W] (Idefics 3, SmolVLM), filled up with
    zeros where a sample has fewer.
    """
    pixels = batch.get("pixel_values")
    inside = isinstance(pixels, Tensor) and pixels.ndim == 5 and COUNTS not in batch
    return inside and not _one_behind_another(batch, IMAGES)


def drop_empty_images(batch: dict) -> dict[str, Any]:
    """`batch` without images `of_rows` of which all are zero: its samples have none."""
    if not of_rows(batch) or batch["pixel_values"].any():
        return batch
    return {key: value for key, value in batch.items() if key not in IMAGE_KEYS}


def fill_images(parts: list[dict]) -> list[dict]:
    """Batches with as many images in every row, where some have images `of_rows`."""
    like = next((part for part in parts if of_rows(part)), {})
    for key in like.keys() & set(IMAGE_KEYS):
        most = max(part[key].shape[1] for part in parts if key in part)
        filled = []
        for part in parts:
            none = like[key].new_zeros(len(part["labels"]), 0, *like[key].shape[2:])
            value = part.get(key, none)
            space = value.new_zeros(len(value), most - value.shape[1], *value.shape[2:])
            filled.append({**part, key: torch.cat([value, space], dim=1)})
        parts = filled
    return parts


def _spans(sizes: Tensor, groups: Tensor) -> Tensor:
    """Indices of the members of `groups`, where groups of the given sizes lie one behind another.

    >>> _spans(torch.tensor([2, 0, 3]), torch.tensor([2, 0]))
    tensor([2, 3, 4, 0, 1])
    """
    ends = sizes.cpu().cumsum(0)
    starts = (ends - sizes.cpu()).tolist()
    spans = [torch.arange(starts[g], int(ends[g])) for g in groups.tolist()]
    return torch.cat([torch.empty(0, dtype=torch.int64), *spans])


def _one_behind_another(batch: dict, media: Media) -> bool:
    """Idefics and Mllama have [N, images, ...] instead, whose rows are samples."""
    pixels = batch.get(media.pixels)
    if pixels is None:
        return False
    if media is VIDEOS:
        return True
    return pixels.ndim == 4 or media.grid in batch or "image_sizes" in batch


def _check_whole(batch: dict, media: Media) -> None:
    """ValueError where there are not as many patches as the sizes say."""
    if media.grid not in batch:
        return
    patches, rows = int(batch[media.grid].prod(dim=1).sum()), len(batch[media.pixels])
    if patches != rows:
        raise ValueError(
            f"{media.pixels}: got {rows} rows, expected {patches}, one for each patch of "
            f"{media.grid}; {CUT}"
        )


def _number(batch: dict, media: Media) -> int:
    return len(batch[media.grid if media.grid in batch else media.pixels])


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


def _runs(where: Tensor) -> Tensor:
    """How often a run of true entries begins in each row of `where` [N, L]."""
    begins = where.clone()
    begins[:, 1:] &= ~where[:, :-1]
    return begins.sum(dim=1)


def _check(batch: dict, counts: Tensor, media: Media) -> None:
    num, number = len(batch["labels"]), _number(batch, media)
    if counts.shape != (num,) or counts.dtype != torch.int64 or int(counts.sum()) != number:
        raise ValueError(
            f"batch[{media.counts!r}]: got {counts.tolist()} ({counts.dtype}), expected the number "
            f"of {media.what} of each of the {num} samples (int64), {number} in all"
        )
