"""Everything a policy may ask to know of a candidate batch, from one forward (docs/method.md 1).

What is computed is what `needs` names, and nothing else. All but the per-sample gradients of
trained weights come from a forward without gradients; those need one with, and a backward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oasis.selection.memory import WIDTH
from oasis.train.batch.subbatch import right_padded, targets
from oasis.train.frozen.blocks import all_blocks, evenly, last_block, middle_block, output_of
from oasis.train.frozen.prefix import FrozenPrefix, Skip
from oasis.train.head import Head
from oasis.train.models import prompt_length, unwrap
from oasis.train.scoring import (
    NOT_CALLED,
    as_little,
    check_length,
    evaluating,
    head_hook,
    head_scores,
    model_inputs,
)
from oasis.train.signals.features import attended, image_text_score, mean_over
from oasis.train.signals.sample_grads import SampleGradients

GRAMS = frozenset({"gram", "validation", "sketch"})  # those of the layer's gradients
HEAD = GRAMS | {"loss", "entropy", "el2n"}
GRADS = frozenset({"full_grads", "middle_grads"})


def of_head(needs: frozenset[str], layer: str) -> frozenset[str]:
    """What of `needs` comes from the output head's weight."""
    return (needs & HEAD) - (GRAMS if layer == "last_block" else frozenset())


def compute(
    model: nn.Module,
    batch: dict,
    head: Head,
    needs: frozenset[str],
    candidates: int | None = None,
    grads: SampleGradients | None = None,
    layer: str = "head",
) -> dict[str, Tensor | None]:
    """Signals of the first `candidates` rows of `batch` (default: of all), by their names.

    The Gram matrices and sketches are those of the output head's gradients, or with `layer`
    "last_block" of the trained weights of the last transformer block.

    The other rows are the validation rows: "validation" gives `validation_gram` [N, M] float64, the
    inner products of the candidates' gradients with theirs, None where there are none.
    `grads` holds what has been found out about the model's layers; made anew where not given.

    One forward in eval mode. Gradients, random generators, the mode of every module and its hooks
    are afterwards as they were.

    Raises:
        ValueError: the head cannot be scored by, or the model lacks what a signal is made of.
    """
    grads = grads or SampleGradients()
    batch = right_padded(batch)
    labels = batch["labels"]
    count = len(labels) if candidates is None else candidates
    block = needs & GRAMS if layer == "last_block" else frozenset()
    asked = of_head(needs, layer)
    scored, differentiated = bool(asked), bool(needs & GRADS or block)
    if scored and head.error is not None:
        raise ValueError(head.error)
    where = targets(labels)
    found: dict[str, Tensor | None] = {}
    # Now, since a forward under FSDP leaves other tensors in their places.
    groups = _groups(model, needs)
    last_weights = list(last_block(model).parameters()) if block else []
    calls = []

    def capture(module: nn.Module, hidden: Tensor) -> Tensor:
        check_length(hidden, labels)
        calls.append(hidden.shape)
        last = hidden.detach()
        if scored:
            found.update(scores_of(module, last, labels, head, asked, count))
        found.update(_of_states(model, batch, last, needs, count))
        if not differentiated:
            return as_little(module, hidden)
        if head.gather:
            return hidden[where].unsqueeze(0)
        # Of NaN at other positions, a gradient of zero would make NaN in the head's weight.
        return hidden.masked_fill(~where.unsqueeze(2), 0)

    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(head_hook(model, capture))
        if "features_multi" in needs:
            stack.enter_context(_block_means(model, batch, found, count))
        if differentiated:
            stack.enter_context(_gradients(model))
            stack.enter_context(grads.watch(model, tuple(labels.shape)))
        output = model(**model_inputs(model, batch))
        if len(calls) != 1:
            raise RuntimeError(NOT_CALLED.format(len(calls)))
        if differentiated:
            logits = output.logits[0] if head.gather else output.logits[where]
            losses = mean_losses(logits, labels, where)
            found.update(grads.sketches(losses[:count], groups))
            if block:
                gram, rows = grads.gram(losses, last_weights, WIDTH * ("sketch" in block))
                found.update(grams_of(gram, rows, block, count))
    return found


def _of_states(
    model: nn.Module, batch: dict, last: Tensor, needs: frozenset[str], count: int
) -> dict[str, Tensor | None]:
    """What `needs` asks for of the last hidden states [N, T, D], of the first `count` rows."""
    found: dict[str, Tensor | None] = {}
    if "features" in needs:
        found["features"] = mean_over(last, attended(batch))[:count]
    if "image_text_score" in needs:
        score = image_text_score(model, batch, last)
        found["image_text_score"] = None if score is None else score[:count]
    return found


def scores_of(
    module: nn.Module, hidden: Tensor, labels: Tensor, head: Head, needs: frozenset[str], count: int
) -> dict[str, Tensor | None]:
    """What `needs` (of `HEAD`) asks for of the first `count` rows, from what enters the output head
    `module`: see `head_scores`.
    """
    sketch, products = WIDTH * ("sketch" in needs), bool(needs & {"gram", "validation"})
    known = head_scores(module, hidden, labels, head, sketch, products)
    found = {name: getattr(known, name)[:count] for name in needs - GRAMS}
    return {**found, **grams_of(known.gram, known.sketch, needs, count)}


def grams_of(
    gram: Tensor, sketch: Tensor | None, needs: frozenset[str], count: int
) -> dict[str, Tensor | None]:
    """Of the Gram matrix and the sketches of all rows, what `needs` asks for: of the first `count`,
    and theirs with the rest.
    """
    found: dict[str, Tensor | None] = {}
    if "gram" in needs:
        found["gram"] = gram[:count, :count]
    if "validation" in needs:
        found["validation_gram"] = gram[:count, count:] if len(gram) > count else None
    if "sketch" in needs:
        assert sketch is not None  # it was asked for
        found["sketch"] = sketch[:count]
    return found


def mean_losses(logits: Tensor, labels: Tensor, where: Tensor) -> Tensor:
    """[N] mean cross-entropy of each row, from the logits [T, V] at its label positions `where`;
    zero for a row without.
    """
    rows = where.nonzero(as_tuple=True)[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, labels.roll(-1, dims=1)[where], reduction="none")
    sums = losses.new_zeros(len(labels)).index_add(0, rows, losses)
    return sums / where.sum(dim=1).clamp(min=1)


def _groups(model: nn.Module, needs: frozenset[str]) -> dict[str, list[nn.Parameter]]:
    """The weights that each kind of gradient is taken with respect to."""
    groups = {}
    if "full_grads" in needs:
        groups["full_grads"] = list(model.parameters())
    if "middle_grads" in needs:
        groups["middle_grads"] = list(middle_block(model).parameters())
    return groups


@contextlib.contextmanager
def _gradients(model: nn.Module) -> Iterator[None]:
    """Gradients on, and no bucket of DDP waiting for a backward pass that is none of its own."""
    quiet = getattr(model, "no_sync", contextlib.nullcontext)
    with torch.enable_grad(), quiet():
        yield


@contextlib.contextmanager
def _block_means(
    model: nn.Module, batch: dict, found: dict[str, Tensor | None], count: int
) -> Iterator[None]:
    """Puts `features_multi` [N, 5, D] together from what five blocks of the whole depth give, those
    that are cached included.
    """
    blocks, where = all_blocks(model), attended(batch)
    virtual = prompt_length(model)
    chosen = evenly(len(blocks))
    frozen = sorted({i for i in chosen if isinstance(blocks[i], Skip)})
    means: dict[int, Tensor] = {}
    if frozen:
        prefix = unwrap(model).get_input_embeddings()
        assert isinstance(prefix, FrozenPrefix)  # who else leaves Skips
        lower = prefix.block_means(batch["input_ids"][:count], frozen, where[:count])
        means.update(zip(frozen, lower.unbind(dim=1), strict=True))

    def keep(index: int):
        def hook(module: nn.Module, args: tuple, output: Tensor | tuple) -> None:
            states = output_of(output).detach()[:, virtual:]
            means[index] = mean_over(states, where)[:count]
            if len(means) == len(set(chosen)):
                found["features_multi"] = torch.stack([means[i] for i in chosen], dim=1)

        return hook

    running = sorted(set(chosen) - set(frozen))  # the last block always runs
    handles = [blocks[i].register_forward_hook(keep(i)) for i in running]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
