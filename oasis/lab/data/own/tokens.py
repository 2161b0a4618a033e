"""Samples to token ids with labels on what the assistant says, and nothing cut without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoding import following_ids, prompt_ids
from oasis.lab.data.own.fields import PAIR, WHOLE, Sample
from oasis.names import IGNORED

# How turns are written where a tokenizer has no chat template: each with its name, the answer's
# end marked by the end-of-sequence token.
PLAIN = {"system": "System: {}\n", "user": "User: {}\n", "assistant": "Assistant:"}


class NothingLeft(ValueError):
    """A sample has no token to learn, or none to learn it from."""


class TooLong(NothingLeft):
    """A sample is longer than `max_length`, and can't be cut, since that could be in an image."""


@dataclass(frozen=True)
class Encoded:
    """`ids` and `labels` (-100 where nothing is learnt), both of one length.

    `cut`: tokens left out, for there were more than `max_length`. `last_only`: the chat template
    writes earlier turns anew once others follow, so that only the last answer is learnt. `vision`:
    what the processor made of images, and the `contents` of their files.
    """

    ids: list[int]
    labels: list[int]
    cut: int = 0
    last_only: bool = False
    vision: dict[str, Tensor] | None = None
    contents: tuple[bytes, ...] = ()


def encode_sample(
    sample: Sample,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    chat: bool | None = None,
) -> Encoded:
    """Token ids and labels of a sample.

    A pair is its prompt, a space (where neither has white space there), its completion and the
    end-of-sequence token. Turns are what the tokenizer's chat template makes of them, or without
    one as in `PLAIN`; labels are on all that the assistant says, its end included. A text is
    learnt from its first token to its last. Too long a sample loses tokens at its beginning (a text
    at its end), a BOS never; an answer that is too long by itself loses its end.

    Args:
        chat: True writes pairs with the chat template too, False writes turns without it; None
            (default) takes it for turns, where there is one.

    Raises:
        NothingLeft: no token to learn, or none to learn it from, within `max_length`.
        ValueError: the chat template does not take the turns.
    """
    template = tokenizer.chat_template is not None
    if chat and not template:
        raise ValueError("data.chat: got true, but the tokenizer has no chat template")
    if sample.kind == WHOLE:
        return _text(sample, tokenizer, max_length)
    if sample.kind == PAIR and not chat:
        first, parts = _pair(sample, tokenizer)
        return _fit(first, parts, max_length)
    if template and chat is not False:
        return _templated(sample, tokenizer, max_length)
    first, parts = _plain(sample, tokenizer)
    return _fit(first, parts, max_length)


# Why a sample has nothing to learn.
EMPTY, TOO_LONG = "empty", "too long to learn from"
IMAGES_TOO_LONG = "too long for its images"


Parts = list[tuple[list[int], bool]]  # token ids, and whether they are learnt


def _text(sample: Sample, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encoded:
    first, own = prompt_ids(sample.turns[0][1], tokenizer)
    ids = [*first, *own, *_end(tokenizer)]
    kept = ids[:max_length]
    labels = [IGNORED] * len(first) + kept[len(first) :]
    return _checked(Encoded(kept, labels, len(ids) - len(kept)))


def _pair(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], Parts]:
    (_, prompt), (_, completion) = sample.turns
    first, own = prompt_ids(prompt, tokenizer)
    answer = following_ids(_space(prompt, completion) + completion, tokenizer)
    return first, [(own, False), ([*answer, *_end(tokenizer)], True)]


def _plain(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], Parts]:
    first, parts = [], []
    for at, (role, text) in enumerate(sample.turns):
        asked = PLAIN[role].format(text)
        if at == 0:
            first, own = prompt_ids(asked, tokenizer)
        else:
            own = following_ids(asked, tokenizer)
        parts.append((own, False))
        if role == "assistant":
            answer = following_ids(_space("", text) + text, tokenizer)
            parts.append(([*answer, *_end(tokenizer)], True))
    return first, parts


def _templated(sample: Sample, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encoded:
    messages = [{"role": role, "content": text} for role, text in sample.turns]
    answers = [at for at, (role, _) in enumerate(sample.turns) if role == "assistant"]
    lost = False
    try:
        whole = _apply(tokenizer, messages)
        labels = [IGNORED] * len(whole)
        for at in answers:
            asked = _apply(tokenizer, messages[:at], add_generation_prompt=True)
            answered = _apply(tokenizer, messages[: at + 1])
            if answered[: len(asked)] != asked or whole[: len(answered)] != answered:
                lost = True
                continue
            labels[len(asked) : len(answered)] = answered[len(asked) :]
    except jinja2.TemplateError as error:
        raise ValueError(
            f"{sample.key}: the tokenizer's chat template does not take these turns ({error})"
        ) from error
    if lost and labels.count(IGNORED) == len(labels):
        raise ValueError(
            f"{sample.key}: the tokenizer's chat template does not write the answer behind what "
            "asks for it, so its tokens can't be found; data.chat: false writes turns without it"
        )
    return replace(fitted(whole, labels, tokenizer, max_length), last_only=lost)


def fitted(
    ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Encoded:
    """Tokens of turns, cut to `max_length`. Raises NothingLeft."""
    first = ids[:1] if ids[:1] == [tokenizer.bos_token_id] else []
    own = list(zip(ids, labels, strict=True))[len(first) :]
    return _fit(first, [([token], label != IGNORED) for token, label in own], max_length)


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict], **more: Any) -> list[int]:
    if not messages:
        return []
    ids = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=False, **more)
    return ids  # pyright: ignore[reportReturnType] # of these arguments come ids


def _fit(first: list[int], parts: Parts, max_length: int) -> Encoded:
    """The parts behind `first`, cut to `max_length` tokens: at the beginning as far as nothing of
    the last answer goes, then at its end.
    """
    ids = [token for tokens, _ in parts for token in tokens]
    labels = [token if learnt else IGNORED for tokens, learnt in parts for token in tokens]
    over = len(first) + len(ids) - max_length
    if over > 0:
        start = len(labels)  # of the last answer
        while start and labels[start - 1] == IGNORED:
            start -= 1
        while start and labels[start - 1] != IGNORED:
            start -= 1
        # One token of what asks stays.
        begin = min(over, max(start - 1, 0))
        ids, labels = ids[begin:], labels[begin:]
        room = max(max_length - len(first), 0)
        ids, labels = ids[:room], labels[:room]
    return _checked(Encoded([*first, *ids], [IGNORED] * len(first) + labels, max(over, 0)))


def _checked(encoded: Encoded) -> Encoded:
    if all(label == IGNORED for label in encoded.labels[1:]):
        raise NothingLeft(
            f"max_length: of {len(encoded.ids) + encoded.cut} tokens too few are left to learn from"
            if encoded.cut
            else "no token to learn, or none to learn it from"
        )
    return encoded


def _space(before: str, after: str) -> str:
    return "" if before[-1:].isspace() or after[:1].isspace() else " "


def _end(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    eos = tokenizer.eos_token_id
    return [eos] if isinstance(eos, int) else []
