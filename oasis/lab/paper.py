"""Presets of the paper's models: settings of a run, and what it would take, without the weights.

`paper.yaml` has them, with the models' configurations as published, so that nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from oasis.lab import strict_yaml

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from oasis.lab.config import RunConfig

NAMES = ("llava-1.5-7b", "llava-1.5-13b", "qwen2.5-vl-7b", "llama-3.1-8b", "qwen3-8b")
GIB = 2**30
TRAINED_BYTES = 16  # of a float32 weight of LoRA, its gradient and Adam's two moments


@cache
def presets() -> dict[str, Any]:
    """What `paper.yaml` says, by name."""
    text = resources.files("oasis.lab").joinpath("paper.yaml").read_text(encoding="utf-8")
    return strict_yaml.parse(text, "paper.yaml")


def settings(name: str) -> dict[str, Any]:
    """The settings that a preset stands for."""
    return dict(presets()[name]["settings"])


def empty_model(name: str) -> PreTrainedModel:
    """The model of a preset with its published sizes, in bfloat16 and without any weights (on the
    device "meta").
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    values = dict(presets()[name]["config"])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    kind = AutoModelForImageTextToText if "vision_config" in values else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config, dtype=torch.bfloat16)


def lora_weights(model: PreTrainedModel, rank: int) -> int:
    """Weights of LoRA of a rank on all linear layers of the language model's blocks."""
    from torch import nn

    from oasis.train.frozen.blocks import all_blocks

    layers = (m for block in all_blocks(model) for m in block.modules() if isinstance(m, nn.Linear))
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)


def plan(name: str, config: RunConfig) -> Iterator[str]:
    """Steps, memory and the shape of the head of a run with a preset, line by line."""
    from oasis.train.head import head_weight, output_head
    from oasis.train.models import text_config

    said, model = presets()[name], empty_model(name)
    text = text_config(model)
    head = head_weight(output_head(model))
    weights = sum(p.numel() for p in model.parameters())
    trained = lora_weights(model, config.rank)
    yield (
        f"{name}: {config.model}, {weights:,} parameters; output head {head.shape[0]:,} x "
        f"{head.shape[1]:,} ({'tied' if text.tie_word_embeddings else 'of its own'})"
    )
    yield (
        f"LoRA of rank {config.rank} on all linear layers of the language model's "
        f"{text.num_hidden_layers} blocks: {trained:,} weights; AdamW without weight decay, "
        f"{config.lr_schedule}, {config.learning_rate:g}"
    )
    yield f"the paper does not say: {', '.join(said['unsaid'])}; these are ours"
    for stream, arrivals in said["stream"].items():
        steps = int(arrivals * config.iterations_per_sample)
        candidates = steps * config.batch_size
        samples = int(config.ratio * candidates)
        yield (
            f"{stream}: {arrivals:,} arrivals, {steps:,} steps, {candidates:,} candidates in "
            f"batches of {config.batch_size}, about {samples:,} samples trained on "
            f"(ratio {config.ratio:g})"
        )
    yield from _memory(model, text, config, weights, trained)


def _memory(
    model: PreTrainedModel, text: Any, config: RunConfig, weights: int, trained: int
) -> Iterator[str]:
    """Bytes of what is certain: weights, what is trained, and hidden states between blocks."""
    tokens = config.batch_size * config.max_length
    states = 2 * tokens * text.hidden_size * text.num_hidden_layers
    parts = {
        "weights in bfloat16": 2 * weights,
        "LoRA, its gradients and AdamW's moments in float32": TRAINED_BYTES * trained,
        f"hidden states between the blocks of {config.batch_size} x {config.max_length} tokens "
        "(gradient checkpointing)": states,
    }
    listed = "; ".join(f"{name} {size / GIB:.2f} GiB" for name, size in parts.items())
    yield f"memory: {sum(parts.values()) / GIB:.1f} GiB at least ({listed})"
