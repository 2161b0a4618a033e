"""Samples to token ids, as the model that is trained takes them: text, or text and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from oasis.lab.data.llava import Conversation
from oasis.lab.data.own.fields import WHOLE, Sample
from oasis.lab.data.own.tokens import (
    EMPTY,
    IMAGES_TOO_LONG,
    TOO_LONG,
    Encoded,
    NothingLeft,
    TooLong,
    encode_sample,
    fitted,
)
from oasis.lab.data.pictures import open_all
from oasis.lab.data.processed import labelled
from oasis.names import IGNORED
from oasis.train.batch.images import IMAGE_KEYS


@dataclass(frozen=True)
class Encoder:
    """Encodes samples for a model with this tokenizer, and with the processor of images and text
    that a vision-language model has.

    With a processor, pairs and turns are what its chat template makes of them, with images or
    without; a text without images is learnt as a language model learns it. `chat` is that of
    `encode_sample`.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    chat: bool | None = None
    processor: Any = None

    def __call__(self, sample: Sample) -> Encoded:
        """
        Raises:
            NothingLeft, ValueError: see `encode_sample`.
            TooLong: more than `max_length` tokens, with images among them.
            ValueError, FileNotFoundError: naming the row and an image that cannot be read.
        """
        template = None
        if self.processor is not None and sample.kind != WHOLE and self.chat is not False:
            template = self.processor.chat_template
        if sample.images and not template:
            raise ValueError(
                f"{sample.key}: images are placed by the processor's chat template, and "
                + ("data.chat is false" if self.chat is False else "it has none")
            )
        if template:
            return self._processed(sample)
        return encode_sample(sample, self.tokenizer, self.max_length, chat=self.chat)

    def or_why(self, sample: Sample) -> Encoded | str:
        """A sample encoded, or why it has nothing to learn."""
        if sample.empty:
            return EMPTY
        try:
            return self(sample)
        except TooLong:
            return IMAGES_TOO_LONG
        except NothingLeft:
            return TOO_LONG

    def choices(self, sample: Sample, choices: Sequence[str]) -> list[list[int]]:
        """Token ids of each of the `choices` as the answer of a sample with one at its end, in the
        white space that it has there.
        """
        whole = replace(self, max_length=1 << 30)
        before, behind = white_space(sample.turns[-1][1])
        found = []
        for choice in choices:
            answered = replace(
                sample, turns=(*sample.turns[:-1], ("assistant", before + choice + behind))
            )
            found.append([label for label in whole(answered).labels if label != IGNORED])
        return found

    def _processed(self, sample: Sample) -> Encoded:
        images, contents = open_all(sample.images, sample.key)
        messages = Conversation(sample.key, (), sample.turns).messages(images)
        try:
            row = labelled(self.processor, messages, sample.key)
        except jinja2.TemplateError as error:
            raise ValueError(
                f"{sample.key}: the processor's chat template does not take these turns ({error})"
            ) from error
        ids, labels = row["input_ids"].tolist(), row["labels"].tolist()
        if sample.images and len(ids) > self.max_length:
            raise TooLong(f"max_length: got {len(ids)} tokens, expected at most {self.max_length}")
        encoded = fitted(ids, labels, self.tokenizer, self.max_length)
        vision = row if any(key in IMAGE_KEYS for key in row) else None
        return replace(encoded, vision=vision, contents=tuple(contents))


def white_space(text: str) -> tuple[str, str]:
    """That before a text and that behind it; what is nothing else has it before."""
    bare = text.lstrip()
    return text[: len(text) - len(bare)], bare[len(bare.rstrip()) :]
