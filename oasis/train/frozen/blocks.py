"""The transformer blocks of a language model, as they stand in its forward."""

from __future__ import annotations

import math

from torch import Tensor, nn

from oasis.train.frozen.prefix import Skip
from oasis.train.models import base_model, text_config


def all_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the language model (not of a vision tower), in order; those whose hidden states
    `freeze_below` caches are `Skip`.

    They are looked up at every call, since PEFT, FSDP and `freeze_below` replace modules.

    Raises:
        ValueError: no list of as many modules as the configuration says there are blocks.
    """
    base = base_model(model)
    config = text_config(model)
    count = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    decoder: nn.Module = base.get_decoder() if hasattr(base, "get_decoder") else base
    lists = [m for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    # A vision tower of the same depth comes first in some models; the text stack is the larger one.
    lists.sort(key=lambda blocks: -sum(p.numel() for p in blocks.parameters()))
    if not lists:
        raise ValueError(
            f"model: {type(base).__name__} has no list of its {count} blocks, which the policy's "
            "signals (features_multi, middle_grads, or the layer 'last_block') need"
        )
    return list(lists[0])


def running_blocks(model: nn.Module) -> list[nn.Module]:
    """Those of `all_blocks` that run in every forward."""
    return [block for block in all_blocks(model) if not isinstance(block, Skip)]


def evenly(count: int, wanted: int = 5) -> list[int]:
    """Indices of `wanted` evenly spaced ones of `count`, the last among them; repeated where there
    are fewer.

    >>> evenly(10), evenly(2)
    ([1, 3, 5, 7, 9], [0, 0, 1, 1, 1])
    """
    return [math.ceil(count * (step + 1) / wanted) - 1 for step in range(wanted)]


def middle_block(model: nn.Module) -> nn.Module:
    """The middle one of the blocks that are trained (the upper of two)."""
    trained = [b for b in running_blocks(model) if any(p.requires_grad for p in b.parameters())]
    if not trained:
        raise ValueError("model: got no trainable weight in any block; middle_grads needs some")
    return trained[len(trained) // 2]


def last_block(model: nn.Module) -> nn.Module:
    """The last block, which must be trained."""
    block = running_blocks(model)[-1]
    if not any(p.requires_grad for p in block.parameters()):
        raise ValueError(
            "layer: got 'last_block', but no weight of the model's last block is trained; put LoRA "
            "on it, or score by the output head (layer='head')"
        )
    return block


def output_of(result: Tensor | tuple) -> Tensor:
    """The hidden states [N, L, D] among what a block returns."""
    return result if isinstance(result, Tensor) else result[0]
