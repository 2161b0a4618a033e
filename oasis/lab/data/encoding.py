"""Examples to token ids with label masks, and padding of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from oasis.lab.data.tasks import Example
from oasis.names import IGNORED
from oasis.train.batch.columns import ITEM, TASK


def prompt_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before a text (BOS, or none), and the text's own.

    What it puts behind a text (EOS, [SEP]) is left out: an answer is to follow.
    """
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text)["input_ids"]
    for start in range(len(whole) - len(own) + 1):
        if whole[start : start + len(own)] == own:
            return whole[:start], own
    raise ValueError(f"prompt: the tokenizer changes the tokens of {text!r} beside special ones")


def following_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a text as it follows another.

    Alone, a text gets a token for a space that is not there from some tokenizers (Llama's
    SentencePiece), so it is put behind something and the tokens of that are taken off.
    """
    before = "x" if text[:1].isspace() else "\n"
    start = tokenizer(before, add_special_tokens=False)["input_ids"]
    whole = tokenizer(before + text, add_special_tokens=False)["input_ids"]
    if whole[: len(start)] == start:
        return whole[len(start) :]
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def answer_ids(answer: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of an answer as it follows a prompt: one space before it, no special tokens."""
    ids = following_ids(" " + answer.strip(), tokenizer) if answer.strip() else []
    if not ids:
        raise ValueError(f"answer: {answer!r} has no tokens")
    return ids


def encode(
    example: Example,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 128,
    *,
    eos: bool = False,
) -> dict[str, list[int]]:
    """Token ids of prompt and answer; labels are the answer's ids, -100 on the prompt.

    Labels are not shifted (the model shifts them). A prompt that is too long loses tokens at its
    beginning, but for a BOS, so that the question at its end and the whole answer stay. `eos` ends
    the answer with the end-of-sequence token (wanted where answers are generated). ValueError where
    the answer leaves no room for at least one prompt token.
    """
    answer = answer_ids(example.answer, tokenizer)
    if eos:
        answer = [*answer, tokenizer.eos_token_id]
    first, prompt = prompt_ids(example.prompt.rstrip(), tokenizer)
    room = max_length - len(first) - len(answer)
    if room < 1:
        raise ValueError(
            f"max_length: got {max_length}, expected more than the answer's {len(answer)} tokens"
            + (f" and {len(first)} before the prompt" if first else "")
        )
    if not first + prompt:
        raise ValueError(f"prompt: {example.prompt!r} has no tokens; nothing predicts the answer")
    prompt = first + prompt[-room:]
    return {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}


class Collator:
    """Pad a list of encoded examples to one batch of LongTensors.

    Gives `input_ids`, `attention_mask`, `labels` [N, T], and `task` and `item` [N] where the items
    carry them.

    Args:
        pad_token_id (int): Written to padded positions of `input_ids` (masked, and -100 in
            `labels`).
        padding_side ("left" or "right"): Default left, so that the last position of every row is a
            real token.
    """

    def __init__(self, pad_token_id: int, padding_side: str = "left") -> None:
        if padding_side not in ("left", "right"):
            raise ValueError(f"padding_side: got {padding_side!r}, expected 'left' or 'right'")
        self.pad_token_id = pad_token_id
        self.padding_side = padding_side

    def _pad(self, rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
        length = max(len(row) for row in rows)
        out = torch.full((len(rows), length), value, dtype=torch.long)
        for index, row in enumerate(rows):
            start = length - len(row) if self.padding_side == "left" else 0
            out[index, start : start + len(row)] = torch.as_tensor(row, dtype=torch.long)
        return out

    def __call__(self, items: Sequence[dict]) -> dict[str, torch.Tensor]:
        if not items:
            raise ValueError("items: got an empty batch, expected at least one example")
        ids = [item["input_ids"] for item in items]
        batch = {
            "input_ids": self._pad(ids, self.pad_token_id),
            "attention_mask": self._pad([[1] * len(row) for row in ids], 0),
            "labels": self._pad([item["labels"] for item in items], IGNORED),
        }
        for name in (TASK, ITEM):
            if all(name in item for item in items):
                batch[name] = torch.tensor([item[name] for item in items], dtype=torch.long)
        return batch
