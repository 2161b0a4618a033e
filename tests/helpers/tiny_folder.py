"""A folder with a tiny random model and its tokenizer, as users have them; and rows for it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte."""
    names = ["<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>")


def llama_config(vocabulary: int, layers: int) -> LlamaConfig:
    """Of a model with `byte_tokenizer`'s tokens, and perhaps more."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.3,
    )


def save(folder: Path, layers: int = 1) -> str:
    """Write model and tokenizer into `folder`; returns it."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    LlamaForCausalLM(llama_config(len(tokenizer), layers)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_rows(path: Path, rows: list[dict]) -> str:
    """JSON lines; returns the path."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def numbers(count: int) -> list[dict]:
    """Free text: each number's successor."""
    return [{"prompt": f"After {i}?", "completion": str(i + 1)} for i in range(count)]


def parities(count: int) -> list[dict]:
    """A closed set of answers."""
    return [{"question": f"Is {i} even?", "answer": "no" if i % 2 else "yes"} for i in range(count)]
