"""How a sample is shown to people: the beginnings of its question and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from oasis.lab.data.encoded import prompt_of

ASKED, ANSWERED = 120, 60  # characters that are shown
ARROW = " \N{RIGHTWARDS ARROW} "


def shown(asked: str, answered: str) -> str:
    """One line: the beginning of what is asked, an arrow, the beginning of the answer."""
    if not asked.strip():
        return beginning(answered, ASKED + ANSWERED)
    return beginning(asked, ASKED) + ARROW + beginning(answered, ANSWERED)


def beginning(text: str, characters: int) -> str:
    """The first characters of a text in one line, with dots where more follow."""
    line = " ".join(text[: 8 * characters].split())
    return line if len(line) <= characters else line[: characters - 1].rstrip() + "…"


class Labels:
    """Adds to selection events the key of each candidate, and its text where it is met first.

    Args:
        items: of the stream, by number.
        tokenizer: theirs.
        earlier: events that are in the record already.
    """

    def __init__(
        self,
        items: Sequence[Mapping[str, Any]],
        tokenizer: PreTrainedTokenizerBase,
        earlier: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.items, self.tokenizer = items, tokenizer
        self.special = frozenset(tokenizer.all_special_ids)
        self.met = bytearray(len(items))
        for event in earlier:
            if event["type"] == "selection":
                for number in event.get("item") or ():
                    self.met[number] = 1

    def __call__(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] != "selection" or event.get("item") is None:
            return event
        items = [self.items[number] for number in event["item"]]
        texts = [
            self._text(number, item) for number, item in zip(event["item"], items, strict=True)
        ]
        return {**event, "key": [item["key"] for item in items], "text": texts}

    def _text(self, number: int, item: Mapping[str, Any]) -> str | None:
        if self.met[number]:
            return None
        self.met[number] = 1
        prompt, ids = prompt_of(item), item["input_ids"]
        # A character is one token at most, but for those of several bytes; an image is hundreds.
        asked = [token for token in prompt if token not in self.special][: 4 * ASKED]
        answered = ids[len(prompt) :][: 4 * ANSWERED]
        return shown(self._decoded(asked), self._decoded(answered))

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
