"""Load a causal language model and put LoRA on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from oasis.lab.data import assets

if TYPE_CHECKING:
    from peft import PeftModel


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model: "smollm2" from its package, else a folder or hub name."""
    with _named(name):
        return AutoTokenizer.from_pretrained(_source(name))


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model, frozen and in eval mode; `name` as of `load_tokenizer`."""
    with _named(name):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(_source(name), dtype=dtype)
        # Its type is that of a function wrapped by functools, which says nothing of `self`.
        model = model.to(device)  # pyright: ignore[reportArgumentType]
    model.config.use_cache = False
    return model.requires_grad_(False).eval()


def _source(name: str) -> str | Path:
    return assets.language_model() if name == "smollm2" else name


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of transformers, which are ValueErrors where files are there but of no use."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise OSError(
            f"model: got {name!r}, expected 'smollm2', a folder with a model, or a name on the "
            f"Hugging Face hub ({error})"
        ) from error


def linear_names(model: PreTrainedModel) -> list[str]:
    """Last name parts of all linear layers but the output head (PEFT's "all-linear").

    PEFT does not take "all-linear" together with a choice of layers, hence the list.
    """
    head = model.get_output_embeddings()
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    return sorted(names)


def check_layers(model: PreTrainedModel, layers: int | None) -> int:
    """Number of the model's blocks; ValueError where LoRA is to be on more of them."""
    total = model.config.get_text_config().num_hidden_layers
    if layers is not None and not 1 <= layers <= total:
        raise ValueError(f"lora_layers: got {layers}, expected null or 1 to {total}")
    return total


def attach_lora(
    model: PreTrainedModel, *, rank: int, alpha: int | None, layers: int | None, seed: int
) -> PeftModel:
    """`model` with fresh LoRA weights (drawn from `seed`) on all linear layers.

    `layers`: number of top blocks that carry it, None for all; the backward pass stops below
    them. `alpha` None is 2 x rank. Take it off again with `.unload()`.
    """
    from peft import LoraConfig, get_peft_model

    total = check_layers(model, layers)
    top = None if layers in (None, total) else list(range(total - layers, total))
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules=linear_names(model),
        layers_to_transform=top,
        task_type="CAUSAL_LM",
    )
    # LoRA's first weights come from the global generator; the caller's state is put back.
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT asks for an attribute that transformers has renamed.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(model, config)
