"""Rows that hold several sequences one behind another (packing, padding-free batches).

The sequences are the samples: they are taken apart, padded, for scoring and selection, and the
selected ones are put together again in one row, for which alone kernels compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oasis.names import IGNORED
from oasis.train.batch.subbatch import per_token

POSITIONS, SEQUENCE, MASK = "position_ids", "seq_idx", "attention_mask"
CUMULATED = ("cu_seq_lens_q", "cu_seq_lens_k")
LONGEST = ("max_length_q", "max_length_k")
KEYS = frozenset({POSITIONS, SEQUENCE, *CUMULATED, *LONGEST})


def is_packed(batch: dict) -> bool:
    """Whether the batch says where sequences begin inside its rows: `cu_seq_lens_q`, or
    `position_ids` [N, L] that start again.
    """
    if batch.get(CUMULATED[0]) is not None:
        return True
    positions, labels = batch.get(POSITIONS), batch["labels"]
    if positions is None or positions.shape != labels.shape:
        return False
    real = _real(batch)
    return bool(((positions.diff(dim=1) != 1) & real[:, 1:] & real[:, :-1]).any())


def unpacked(batch: dict) -> dict:
    """The sequences of a packed batch as rows [S, L'], padded on the right, with an attention mask.

    Sequences of a single token, which predict nothing, are left out as long as others remain: a
    packed row that is filled up ends in such.

    Raises:
        ValueError: a tensor that has no entry for each token, such as images.
    """
    real, tokens = _real(batch), [key for key in per_token(batch) if key not in (*KEYS, MASK)]
    strange = [key for key in batch if key not in {*tokens, *KEYS, MASK}]
    if strange:
        raise ValueError(
            f"batch[{strange[0]!r}]: got rows of several sequences each, which cannot be taken "
            "apart with it; expected one value per token [N, L], or a batch that is not packed"
        )
    where = real.nonzero(as_tuple=True)
    number = _begins(batch, real)[where].cumsum(0) - 1
    lengths = number.bincount()
    begins = lengths.cumsum(0) - lengths
    column = torch.arange(len(number), device=number.device) - begins[number]
    kept = lengths > 1 if (lengths > 1).any() else torch.arange(len(lengths)) == 0
    shape = len(lengths), int(lengths.max())
    rows = {}
    for key in tokens:
        value = batch[key]
        out = value.new_full((*shape, *value.shape[2:]), IGNORED if key == "labels" else 0)
        out[number, column] = value[where]
        rows[key] = out[kept.to(value.device)]
    mask = torch.arange(shape[1], device=lengths.device) < lengths.unsqueeze(1)
    return {**rows, MASK: mask[kept.to(mask.device)].long()}


def packed(rows: dict, like: dict) -> dict:
    """Right-padded `rows` one behind another in one row, which says where they begin as the packed
    batch `like` does.
    """
    real = rows[MASK] != 0
    where = real.nonzero(as_tuple=True)
    out = {key: rows[key][where].unsqueeze(0) for key in per_token(rows) if key != MASK}
    lengths = real.sum(dim=1)
    ends = lengths.cumsum(0)
    total = torch.arange(int(ends[-1]), device=ends.device)
    out[POSITIONS] = (total - (ends - lengths).repeat_interleave(lengths)).unsqueeze(0)
    sequence = torch.arange(len(lengths), device=ends.device).repeat_interleave(lengths)
    out[SEQUENCE] = sequence.unsqueeze(0)
    out[MASK] = torch.ones_like(out["labels"])
    bounds = torch.cat([ends.new_zeros(1), ends])
    out.update(dict.fromkeys(CUMULATED, bounds), **dict.fromkeys(LONGEST, lengths.max()))
    for key in {*KEYS, MASK}:
        said = like.get(key)
        if said is None:
            del out[key]
        else:
            out[key] = out[key].to(said.dtype) if isinstance(said, Tensor) else int(out[key])
    return out


def _real(batch: dict) -> Tensor:
    labels, mask = batch["labels"], batch.get(MASK)
    if mask is None or mask.shape != labels.shape:
        return torch.ones_like(labels, dtype=torch.bool)
    return mask != 0


def _begins(batch: dict, real: Tensor) -> Tensor:
    """[N, L] bool: the first token of each sequence."""
    begins = torch.zeros_like(real)
    bounds = batch.get(CUMULATED[0])
    if bounds is not None:
        flat = begins.view(-1)  # of the rows one behind another
        flat[bounds[:-1].to(flat.device).long()] = True
    else:
        begins[:, 1:] = batch[POSITIONS].diff(dim=1) != 1
    begins |= real & ~real.roll(1, dims=1)
    begins[:, 0] = True
    return begins & real
