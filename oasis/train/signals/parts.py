"""Scoring for less than a forward of the whole batch: in parts of one length, or less deep.

In parts: the rows are sorted by length and scored a few at a time, each part as long as its longest
row, so that little is padding; the scores are those of one forward. Less deep: the forward ends
after some blocks, through the model's own last norm and head, and the scores are others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from oasis.names import IGNORED
from oasis.train.batch.subbatch import right_padded, take, targets
from oasis.train.frozen.blocks import all_blocks
from oasis.train.frozen.prefix import Skip
from oasis.train.head import Head
from oasis.train.models import base_model, is_encoder_decoder
from oasis.train.scoring import (
    NOT_CALLED,
    as_little,
    check_length,
    evaluating,
    head_hook,
    model_inputs,
)
from oasis.train.signals.compute import HEAD, scores_of
from oasis.train.signals.features import attended, mean_over

FORWARD_ALONE = HEAD | {"features"}  # signals of a forward that may be in parts or less deep


def by_length(batch: dict, size: int) -> list[Tensor]:
    """The rows of `batch` in parts of at most `size`, the shortest first; all of them as they lie
    where they are one part.
    """
    if len(batch["labels"]) <= size:
        return [torch.arange(len(batch["labels"]))]
    return list(attended(batch).sum(dim=1).cpu().argsort(stable=True).split(size))


@contextlib.contextmanager
def ending_after(model: nn.Module, depth: int | None) -> Iterator[None]:
    """While open, blocks from number `depth` (counted from 0) on give what they are given."""
    blocks = [] if depth is None else all_blocks(model)
    upper = blocks[depth:]
    as_tuple = False  # what the blocks of this model give, by the last one that runs

    def see(block: nn.Module, args: Any, output: Any) -> None:
        nonlocal as_tuple
        as_tuple = isinstance(output, tuple)

    def pass_on(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states, None) if as_tuple else hidden_states

    handles = [block.register_forward_hook(see) for block in blocks[:depth][-1:]]
    before = [vars(block).get("forward") for block in upper]  # of accelerate's hooks
    try:
        for block in upper:
            block.forward = pass_on
        yield
    finally:
        for handle in handles:
            handle.remove()
        for block, forward in zip(upper, before, strict=True):
            if forward is None:
                vars(block).pop("forward", None)
            else:
                block.forward = forward


def compute_in_parts(
    model: nn.Module,
    batch: dict,
    head: Head,
    needs: frozenset[str],
    candidates: int | None = None,
    size: int | None = None,
) -> dict[str, Tensor | None]:
    """`compute.compute` of signals among `FORWARD_ALONE`, from forwards of at most `size` rows.

    Raises:
        ValueError: the head cannot be scored by.
    """
    if head.error is not None and needs & HEAD:
        raise ValueError(head.error)
    batch = right_padded(batch)
    count, rows = candidates or len(batch["labels"]), len(batch["labels"])
    parts = by_length(batch, size or rows)
    states: list[Tensor] = [torch.empty(0)] * rows
    wanted = list(states)
    means = dict[int, Tensor]()
    found: dict[str, Tensor | None] = {}
    of_head = needs & HEAD
    calls = 0

    def capture(module: nn.Module, hidden: Tensor) -> Tensor:
        nonlocal calls
        labels, real = part["labels"], attended(part)
        check_length(hidden, labels)
        where, after = targets(labels), labels.roll(-1, dims=1)
        counts = where.sum(dim=1).tolist()
        pieces = hidden[where].split(counts), after[where].split(counts)
        for row, *of_row in zip(index.tolist(), *pieces, strict=True):
            states[row], wanted[row] = of_row
        if "features" in needs:
            means.update(zip(index.tolist(), mean_over(hidden, real), strict=True))
        calls += 1
        if of_head and calls == len(parts):  # here, since sharded weights are gathered here
            at_labels = _together(states, wanted)
            found.update(scores_of(module, *at_labels, head, of_head, count))
        return as_little(module, hidden)

    with evaluating(model), head_hook(model, capture):
        for number, index in enumerate(parts, 1):
            part = take(batch, index) if len(parts) > 1 else batch
            model(**model_inputs(model, part))
            if calls != number:
                raise RuntimeError(NOT_CALLED.format(calls - number + 1))
    if "features" in needs:
        found["features"] = torch.stack([means[row] for row in range(count)])
    return found


def _together(states: list[Tensor], wanted: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Hidden states [N, T + 1, D] and labels [N, T + 1] of nothing but label positions."""
    hidden = pad_sequence(states, batch_first=True)
    labels = pad_sequence(wanted, batch_first=True, padding_value=IGNORED)
    return F.pad(hidden, (0, 0, 0, 1)), F.pad(labels, (1, 0), value=IGNORED)


def check_cheaper(
    model: nn.Module, depth: int | None, size: int | None, needs: frozenset[str], layer: str
) -> None:
    """ValueError where scoring cannot be less deep (`score_depth`) or in parts."""
    for name, value in (("score_depth", depth), ("score_batch_size", size)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected a whole number from 1, or None")
        other = sorted(needs - FORWARD_ALONE)
        if not needs or other or layer != "head":
            what = f"layer={layer!r}" if layer != "head" else ", ".join(other) or "no signal at all"
            raise ValueError(
                f"{name}: got {value}, but the policy asks for {what}; expected a policy that "
                f"scores by the output head alone ({', '.join(sorted(FORWARD_ALONE))})"
            )
    if depth is None:
        return
    if is_encoder_decoder(model):
        raise ValueError(
            f"score_depth: got {depth} and an encoder-decoder, {type(base_model(model)).__name__}, "
            "expected a decoder alone; leave score_depth off"
        )
    blocks = all_blocks(model)
    lowest = 1 + sum(isinstance(block, Skip) for block in blocks)
    if not lowest <= depth < len(blocks):
        several = f"{lowest} to {len(blocks) - 1}" if lowest < len(blocks) else "None, not one"
        cached = f", the first {lowest - 1} of which are cached" if lowest > 1 else ""
        raise ValueError(
            f"score_depth: got {depth}, expected {several} of the {len(blocks)} blocks of "
            f"{type(base_model(model)).__name__}{cached}"
        )


def check_packed(size: int | None, distributed: str) -> None:
    """ValueError where processes would wait for each other: a packed batch has another number of
    sequences on each, and sharded weights are gathered for as many forwards on all.
    """
    if size is not None and distributed in ("FSDP", "DEEPSPEED"):
        raise ValueError(
            f"score_batch_size: got {size}, packed batches and weights sharded by {distributed}, "
            "expected None: every process needs as many forwards as the others"
        )
