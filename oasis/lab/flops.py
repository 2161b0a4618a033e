"""Estimated floating-point operations of a run, split into scoring and training.

Counted (a multiplication and an addition are two operations): matrix products alone, on every
position that is run, padding included. With b the weights of a block, r its LoRA weights, T the
positions, L the padded length, d the attention's width (heads x head size), and T_y the label
tokens:

- forward through a block: 2 (b + r) T, and 4 L d T for the attention's two products;
- backward through a block with LoRA: the gradients of the activations, as much as the forward for
  the weights and twice as much for attention, and those of the LoRA weights, 2 r T. Blocks below
  the lowest one with LoRA have no backward;
- output head V x D: 2 V D T_y forward, and as much again backward, at label positions alone;
- blocks whose hidden states are cached: forward once per text, in the first pass that meets it, and
  once more where the policy asks for the means of their own hidden states;
- scoring: a forward; the head where the policy asks for what only logits give, and T_y^2 V for a
  Gram matrix (its symmetric half); for gradients of LoRA weights a backward, which for the Gram
  matrix of the last block's ends there;
- activation checkpointing: the blocks with LoRA once more forward in each backward; where the
  scoring forward is reused, that alone: the first forward of a training step is none.

Norms, activations, soft-max, sketches, the optimizer and the selection itself are left out (below
1 % in the models at hand), and so is evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from oasis.train.frozen.blocks import running_blocks
from oasis.train.frozen.prefix import FrozenPrefix
from oasis.train.head import head_weight, output_head
from oasis.train.models import text_config
from oasis.train.signals.compute import GRADS, GRAMS, HEAD


@dataclass(frozen=True)
class Shape:
    """Sizes of a language model: `frozen` and `trained` blocks with the sums of their weights,
    `lora` weights in the trained blocks, `attention` the width of one block's, `head` = V x D and
    its `vocabulary`. `cached`: the frozen blocks run once per text.
    """

    frozen_blocks: int
    frozen: int
    trained_blocks: int
    trained: int
    lora: int
    attention: int
    head: int
    vocabulary: int
    cached: bool = False

    @classmethod
    def of(cls, model: nn.Module, prefix: FrozenPrefix | None = None) -> Shape:
        """The sizes of `model` with its adapters on; `prefix`: its cached lower blocks."""
        config = text_config(model)
        lower = list(prefix.lower.layers) if prefix is not None else []
        sizes = [_sizes(block) for block in running_blocks(model)]
        first = next((k for k, (_, lora) in enumerate(sizes) if lora), len(sizes))
        weight = head_weight(output_head(model))
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            frozen_blocks=len(lower) + first,
            frozen=sum(_sizes(block)[0] for block in lower) + sum(w for w, _ in sizes[:first]),
            trained_blocks=len(sizes) - first,
            trained=sum(weights for weights, _ in sizes[first:]),
            lora=sum(lora for _, lora in sizes[first:]),
            attention=heads * size,
            head=weight.shape[0] * weight.shape[1],
            vocabulary=weight.shape[0],
            cached=prefix is not None,
        )

    def frozen_forward(self, rows: int, length: int) -> int:
        """One forward of rows x length positions through the frozen blocks."""
        positions = rows * length
        return 2 * self.frozen * positions + 4 * self.frozen_blocks * length * self.attention * (
            positions
        )

    def forward(self, rows: int, length: int) -> int:
        """One forward through the blocks with LoRA."""
        return self._products(rows, length) + self._attention(rows, length)

    def backward(self, rows: int, length: int) -> int:
        """One backward through the blocks with LoRA."""
        gradients = 2 * self.lora * rows * length
        return self._products(rows, length) + 2 * self._attention(rows, length) + gradients

    def logits(self, tokens: int) -> int:
        """The output head at `tokens` positions, forward."""
        return 2 * self.head * tokens

    def down_to(self, depth: int | None) -> Shape:
        """The sizes of the first `depth` blocks with the head; None: of all."""
        if depth is None:
            return self
        run, left = min(self.frozen_blocks, depth), max(0, depth - self.frozen_blocks)
        below, above = run / max(1, self.frozen_blocks), left / max(1, self.trained_blocks)
        return replace(
            self,
            frozen_blocks=run,
            frozen=round(below * self.frozen),
            trained_blocks=left,
            trained=round(above * self.trained),
            lora=round(above * self.lora),
        )

    def _products(self, rows: int, length: int) -> int:
        return 2 * (self.trained + self.lora) * rows * length

    def _attention(self, rows: int, length: int) -> int:
        return 4 * self.trained_blocks * self.attention * length * rows * length


@dataclass(frozen=True)
class Way:
    """How a run scores and trains: `needs`, what the policy declares; `validation`, the further
    rows that it scores in every batch; `layer`, the one whose gradients the Gram matrix is of;
    `depth`, the blocks that scoring runs (None: all); `scorer`, the sizes of the model that scores
    in place of the trained one; `checkpointed`, whether the backward runs the blocks again;
    `reused`, whether training starts from the scoring forward.
    """

    needs: frozenset[str] = frozenset()
    validation: int = 0
    layer: str = "head"
    depth: int | None = None
    scorer: Shape | None = None
    checkpointed: bool = False
    reused: bool = False


def spent(
    events: Iterable[Mapping],
    texts: Sequence[tuple[int, int, bytes]] | Mapping[int, tuple[int, int, bytes]],
    shape: Shape,
    way: Way,
) -> tuple[int, int]:
    """Operations of (scoring, training) of a run's selection events.

    `texts[item]` is (tokens, label tokens, its identity) of each of the stream's examples.
    """
    needs = way.needs
    scores = (way.scorer or shape).down_to(way.depth)
    scoring = training = 0
    met: set[bytes] = set()
    met_in_scoring = met if way.scorer is None else set()
    averaged: set[bytes] = set()  # FrozenPrefix.block_means runs the blocks again
    for event in events:
        if event["type"] != "selection":
            continue
        items = [texts[item] for item in event["item"]]
        chosen = [text for text, kept in zip(items, event["selected"], strict=True) if kept]
        left = set(event.get("unscored") or ())
        scored = [text for row, text in enumerate(items) if row not in left]
        if needs:
            scoring += _frozen(scores, scored, met_in_scoring, way.validation)
            scoring += _scoring(scores, scored, way)
            if scores.cached and "features_multi" in needs:
                scoring += _frozen(scores, scored, averaged)
        if chosen:
            rows, length, labels = _size(chosen)
            forward = shape.forward(rows, length)
            again = forward if way.checkpointed else 0
            training += 0 if way.reused else _frozen(shape, chosen, met) + forward
            training += again + shape.backward(rows, length) + 2 * shape.logits(labels)
    return scoring, training


def _scoring(shape: Shape, items: list, way: Way) -> int:
    rows, length, labels = _size(items)
    needs = way.needs
    labels += labels * way.validation // rows
    rows += way.validation
    total = shape.forward(rows, length)
    again = total if way.checkpointed else 0  # in a backward
    if needs & (HEAD | GRADS):
        total += shape.logits(labels)
    if needs & GRAMS and way.layer == "head":
        total += labels * labels * shape.vocabulary
    if needs & GRAMS and way.layer == "last_block":
        of_one = (again + shape.backward(rows, length)) // shape.trained_blocks
        total += of_one + shape.logits(labels)
    if needs & GRADS:
        total += again + shape.backward(rows, length) + shape.logits(labels)
    return total


def _frozen(shape: Shape, items: list, met: set[bytes], validation: int = 0) -> int:
    if not shape.cached:
        rows, length, _ = _size(items)
        return shape.frozen_forward(rows + validation, length)
    new = {identity: tokens for tokens, _, identity in items if identity not in met}
    met.update(new)
    return sum(shape.frozen_forward(1, tokens) for tokens in new.values())


def _size(items: list) -> tuple[int, int, int]:
    """Rows, padded length and label tokens."""
    return len(items), max(tokens for tokens, _, _ in items), sum(labels for _, labels, _ in items)


def _sizes(block: nn.Module) -> tuple[int, int]:
    """Weights in matrices of a block, (its own, LoRA's)."""
    own = lora = 0
    for name, parameter in block.named_parameters():
        if parameter.ndim == 2:
            if "lora_" in name:
                lora += parameter.numel()
            else:
                own += parameter.numel()
    return own, lora
