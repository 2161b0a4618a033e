"""Tasks as token ids: what is trained on and what is evaluated, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoding import answer_ids, encode
from oasis.lab.data.tasks import Example, Task
from oasis.names import IGNORED


@dataclass(frozen=True)
class EncodedTask:
    """A task of which `train` and `test` are items: "input_ids" and "labels" (-100 where nothing is
    predicted) of each example, and of those in `test` also "answer", its text.

    With `choices` a task is judged by the likeliest of them: `choice_ids` are their tokens, one
    list for each "style" (how an answer follows its prompt) that items of `test` name. Without, it
    is judged by its held-out loss, and by `metric` (a name in `oasis.lab.metrics`) of what the
    model generates, where there is one.
    """

    name: str
    train: Sequence[dict[str, Any]]
    test: Sequence[dict[str, Any]]
    choices: tuple[str, ...] = ()
    choice_ids: dict[str, list[list[int]]] = field(default_factory=dict)
    metric: str | None = None


def encode_task(task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedTask:
    """The items of a task of short prompts. Answers in free text get an end-of-sequence token."""
    eos = not task.choices and tokenizer.eos_token_id is not None
    choice_ids = {"": [answer_ids(choice, tokenizer) for choice in task.choices]}
    train = encode_examples(task.train, tokenizer, max_length, eos=eos)
    test = encode_examples(task.test, tokenizer, max_length, eos=eos)
    return EncodedTask(task.name, train, test, task.choices, choice_ids, task.metric)


def encode_examples(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    eos: bool = False,
) -> list[dict[str, Any]]:
    """Items of examples, with their answers beside them."""
    return [
        {**encode(example, tokenizer, max_length, eos=eos), "answer": example.answer}
        for example in examples
    ]


def prompt_of(item: Mapping[str, Any]) -> list[int]:
    """The tokens of an item before its (last) answer."""
    labels = item["labels"]
    start = len(labels)
    while start and labels[start - 1] == IGNORED:
        start -= 1
    while start and labels[start - 1] != IGNORED:
        start -= 1
    return item["input_ids"][:start]
