"""Load a language model, or one of images and text, and put LoRA on it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from oasis.lab.data import assets
from oasis.train.frozen.blocks import all_blocks

if TYPE_CHECKING:
    from peft import PeftModel

# Settings that LoRA weights are of, and what PEFT calls them.
SAME = {
    "rank": "r",
    "alpha": "lora_alpha",
    "model": "target_modules",
    "lora_layers": "layers_to_transform",
}


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model: "smollm2" from its package, else a folder or hub name."""
    with _named(name):
        return AutoTokenizer.from_pretrained(_source(name))


def load_reader(name: str) -> tuple[PreTrainedTokenizerBase, Any]:
    """The tokenizer of a model, and the processor of images and text that a vision-language model
    has; None where `name` is a model of text alone.

    Raises:
        OSError: there is none, or none that takes images.
    """
    if not takes_images(name):
        return load_tokenizer(name), None
    with _named(name):
        processor = AutoProcessor.from_pretrained(_source(name))
        if not hasattr(processor, "image_processor"):
            raise ValueError("no processor of images; save one there with save_pretrained")
    return processor.tokenizer, processor


def load_model(
    name: str, device: torch.device, dtype: torch.dtype, setting: str = "model"
) -> PreTrainedModel:
    """A causal language model, or a vision-language model, frozen and in eval mode; `name` as of
    `load_tokenizer`, which errors call `setting`.
    """
    kind = AutoModelForImageTextToText if takes_images(name, setting) else AutoModelForCausalLM
    with _named(name, setting):
        model: PreTrainedModel = kind.from_pretrained(_source(name), dtype=dtype)
        # Its type is that of a function wrapped by functools, which says nothing of `self`.
        model = model.to(device)  # pyright: ignore[reportArgumentType]
    model.config.get_text_config().use_cache = False
    return model.requires_grad_(False).eval()


def takes_images(name: str, setting: str = "model") -> bool:
    """Whether that is a vision-language model; reads no more than its configuration."""
    with _named(name, setting):
        config = AutoConfig.from_pretrained(_source(name))
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _source(name: str) -> str | Path:
    return assets.language_model() if name == "smollm2" else name


@contextmanager
def _named(name: str, setting: str = "model") -> Iterator[None]:
    """Errors of transformers, which are ValueErrors where files are there but of no use, and
    ImportErrors where a processor needs a further library (torchvision for Qwen-VL's).
    """
    try:
        yield
    except ImportError as error:
        # Of a class that is a placeholder while its library is missing, and says so at length.
        found = re.search(r"requires the (\w+) library", str(error))
        library = found[1].lower() if found else error.name
        if library is None:
            raise
        raise OSError(
            f"{setting}: {name} needs {library}, which is not installed: pip install {library}"
        ) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise OSError(
            f"{setting}: got {name!r}, expected 'smollm2', a folder with a model, or a name on the "
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
    """`model` with fresh LoRA weights (drawn from `seed`) on all linear layers, in a
    vision-language model those of its language model.

    `layers`: number of top blocks that carry it, None for all; the backward pass stops below
    them. `alpha` None is 2 x rank. Take it off again with `.unload()`.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        task_type="CAUSAL_LM",
        **_places(model, layers),
    )
    # LoRA's first weights come from the global generator; the caller's state is put back.
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT asks for an attribute that transformers has renamed.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def _places(model: PreTrainedModel, layers: int | None) -> dict[str, Any]:
    """Where LoRA goes, as PEFT names it."""
    total = check_layers(model, layers)
    if model.config.get_text_config() is model.config:
        top = None if layers in (None, total) else list(range(total - layers, total))
        return {"target_modules": linear_names(model), "layers_to_transform": top}
    # A vision tower has blocks too, and layers of the same names.
    inside = {
        module
        for block in all_blocks(model)[-(layers or total) :]
        for module in block.modules()
        if isinstance(module, nn.Linear)
    }
    return {"target_modules": [name for name, m in model.named_modules() if m in inside]}


def load_lora(model: PeftModel, folder: Path) -> None:
    """Give the fresh LoRA weights of `model` the values saved in `folder`.

    Raises:
        ValueError: they are of another rank, scale or place; the message begins with "start".
    """
    from peft import LoraConfig, load_peft_weights, set_peft_model_state_dict

    ours, theirs = model.peft_config["default"], LoraConfig.from_pretrained(str(folder))
    for setting, name in SAME.items():
        mine, saved = (_plain(getattr(config, name)) for config in (ours, theirs))
        if mine != saved:
            raise ValueError(f"start: {folder} has another {setting} ({saved}, here {mine})")
    loaded = set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))
    missing = [name for name in loaded.missing_keys if "lora_" in name]
    if missing or loaded.unexpected_keys:
        raise ValueError(f"start: the weights in {folder} are not those of this model's layers")


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (list, set, tuple)) else value
