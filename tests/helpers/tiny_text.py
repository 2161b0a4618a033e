"""A tokenizer, tasks and a random model small enough for tests, made without any download."""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oasis.lab.config import RunConfig
from oasis.lab.data.tasks import Example, Task
from oasis.lab.workspace import Workspace

WORDS = ["[PAD]", "[UNK]", *["one", "two", "three", "four", "five", "six", "seven", "eight"]]
WORDS += ["Text", ":", "Label", "red", "green", "blue", "cat", "dog"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Splits at white space; its padding token is its end-of-sequence token, id 0."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", eos_token="[PAD]", unk_token="[UNK]"
    )


def model(layers: int = 3, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama with tied embeddings, frozen and in eval mode as `models.load` gives it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        pad_token_id=0,
        initializer_range=0.3,
    )
    result = LlamaForCausalLM(config).requires_grad_(False).eval()
    result.config.use_cache = False
    return result


def task(name: str, choices: tuple[str, ...], train: int = 16, test: int = 8) -> Task:
    """A learnable task: the first word of the text decides the answer."""
    generator = random.Random(name)

    def example() -> Example:
        text = generator.choices(WORDS[2:10], k=generator.randint(2, 6))
        answer = choices[WORDS.index(text[0]) % len(choices)]
        return Example(f"Text : {' '.join(text)} Label :", answer)

    return Task(name, choices, [example() for _ in range(train)], [example() for _ in range(test)])


NAMES = ["colours", "animals"]


def workspace(settings: RunConfig) -> Workspace:
    """Model, tokenizer and two tasks called `NAMES`, as large as `settings` says."""
    choices = (("red", "green", "blue"), ("cat", "dog"))
    tasks = [
        task(name, choice, count, settings.held_out)
        for name, choice, count in zip(NAMES, choices, settings.arrivals_per_task, strict=True)
    ]
    return Workspace(settings, model=model(), tokenizer=tokenizer(), tasks=tasks)
