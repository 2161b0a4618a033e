"""What is known of a model whoever wraps it: its configuration, its inputs, its prompt."""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

WRAPPED = ("_orig_mod", "module", "_fsdp_wrapped_module")  # by compile; DDP, DeepSpeed; FSDP1


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The model (under PEFT: PEFT's, which answers for it) that DDP, FSDP and the like wrap."""
    inner: nn.Module | None = model
    while inner is not None:
        model = inner
        # Not by getattr, since wrappers answer for the model inside.
        inside = (model._modules.get(name) for name in WRAPPED)
        inner = next((module for module in inside if module is not None), None)
    return cast(PreTrainedModel, model)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The model under those and under PEFT's."""
    base: Any = unwrap(model)
    return base.get_base_model() if hasattr(base, "get_base_model") else base


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` has been given the model or some of its modules."""
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names that the model's own `forward` takes (under LoRA: those of the base model), and those
    that a class it derives from takes, where it passes on what it does not know.
    """
    # Of the class, since accelerate replaces the instance's forward by one without a signature.
    return _forward_parameters(type(base_model(model)))


@functools.cache
def _forward_parameters(model: type[nn.Module]) -> frozenset[str]:
    names: set[str] = set()
    for cls in model.__mro__:
        if "forward" in vars(cls) and cls is not nn.Module:
            parameters = inspect.signature(cls.forward).parameters
            names.update(parameters)
            if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
                break
    return frozenset(names)


def text_config(model: nn.Module) -> Any:
    """The configuration of the language model, in a model of several too; of an encoder-decoder
    that of its decoder.
    """
    config = unwrap(model).config
    if not hasattr(config, "get_text_config"):
        return config
    return config.get_text_config(decoder=is_encoder_decoder(model) or None)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether labels are what a decoder says to what an encoder is given (T5, Whisper)."""
    return bool(getattr(getattr(unwrap(model), "config", None), "is_encoder_decoder", False))


def prompt_config(model: nn.Module) -> Any:
    """PEFT's configuration of a learned prompt (prompt, p- or prefix tuning), or None."""
    config = getattr(unwrap(model), "active_peft_config", None)
    return config if getattr(config, "is_prompt_learning", False) else None


def prompt_length(model: nn.Module) -> int:
    """Virtual tokens that PEFT puts before each row, which are positions of the hidden states and
    of no label; those of prefix tuning are keys and values alone.
    """
    config = prompt_config(model)
    if config is None or config.peft_type in ("PREFIX_TUNING", "CARTRIDGE"):
        return 0
    return int(config.num_virtual_tokens)
