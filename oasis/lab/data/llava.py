"""Items and batches of the LLaVA JSON format, for any processor of a vision-language model.

A file is a list of `{"id", "image": a path or several (may be absent), "conversations": [{"from":
"human", "value": "<image>\\n..."}, {"from": "gpt", "value": "..."}, ...]}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oasis.lab.data.json_files import kind_of, read_list
from oasis.lab.data.pictures import open_picture
from oasis.lab.data.processed import Row, image_tensors, labelled
from oasis.names import IGNORED
from oasis.train.batch.columns import ITEM, TASK
from oasis.train.batch.images import IMAGE_KEYS

MARK = "<image>"
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
Turn = tuple[str, str]  # role, text


@dataclass(frozen=True)
class Conversation:
    """Turns of (role, text), role "user", "assistant" or "system", "<image>" where an image goes;
    `images`: their files, in that order.
    """

    id: str
    images: tuple[Path, ...]
    turns: tuple[tuple[str, str], ...]
    where: str = ""  # file and entry, for errors

    def messages(self, images: Sequence[Any] | None = None) -> list[dict]:
        """The turns as `processor.apply_chat_template` takes them, with `images` (default: the
        paths) in the places of the marks.
        """
        left = iter(self.images if images is None else images)
        result = []
        for role, text in self.turns:
            content: list[dict] = []
            for at, part in enumerate(text.split(MARK)):
                content += [{"type": "image", "image": next(left)}] if at else []
                part = part.strip("\n")
                content += [{"type": "text", "text": part}] if part else []
            result.append({"role": role, "content": content})
        return result


def read_llava(path: str | Path, images: str | Path | None = None) -> list[Conversation]:
    """The conversations of one file.

    Args:
        path: the JSON file.
        images: folder that its image paths are relative to; default: the file's own.

    Raises:
        ValueError: not of the format, or not as many images as "<image>" marks; the message names
            file, entry and field. No mark at all: all images stand before the first question.
    """
    path = Path(path)
    folder = path.parent if images is None else Path(images)
    entries = read_list(path, least=0)
    return [_conversation(entry, folder, f"{path}, entry {i}") for i, entry in enumerate(entries)]


def _conversation(entry: Any, folder: Path, where: str) -> Conversation:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: got {kind_of(entry)}, expected an object")
    found = entry.get("conversations")
    if not isinstance(found, list) or not found:
        got = "an empty list" if found == [] else kind_of(found)
        got = got if "conversations" in entry else "nothing"
        raise ValueError(f'{where}: got {got} as "conversations", expected a list of turns')
    turns = [_turn(turn, f'{where}, "conversations"[{at}]') for at, turn in enumerate(found)]
    names = _image_names(entry.get("image"), where)
    turns = with_marks(turns, len(names), where)
    files = tuple(folder / name for name in names)
    return Conversation(str(entry.get("id", "")), files, turns, where)


def with_marks(turns: Sequence[Turn], images: int, where: str) -> tuple[Turn, ...]:
    """Turns with a mark for each image: before the first question where there are no marks.

    Raises:
        ValueError: beginning with `where`, for marks that are not as many as the images, an answer
            without a question before it, or no answer.
    """
    marks = sum(text.count(MARK) for _, text in turns)
    if marks not in (0, images):
        raise ValueError(f"{where}: got {images} images for {marks} marks {MARK}")
    _check_order([role for role, _ in turns], where)
    if images and not marks:
        first = next(i for i, (role, _) in enumerate(turns) if role == "user")
        role, text = turns[first]
        return (*turns[:first], (role, f"{MARK * images}\n{text}"), *turns[first + 1 :])
    return tuple(turns)


def _turn(turn: Any, where: str) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise ValueError(
            f'{where}: got {kind_of(turn)}, expected an object with "from" and "value"'
        )
    role = ROLES.get(turn["from"]) if isinstance(turn.get("from"), str) else None
    if role is None or not isinstance(turn.get("value"), str):
        raise ValueError(
            f'{where}: got the turn {turn!r}, expected "from" (one of {", ".join(ROLES)}) and a '
            'text as "value"'
        )
    return role, turn["value"]


def _check_order(roles: list[str], where: str) -> None:
    """An answer needs a question before it, and a conversation at least one of both."""
    asked = False
    for at, role in enumerate(roles):
        if role == "assistant" and not asked:
            raise ValueError(
                f'{where}: "conversations"[{at}] is an answer ("gpt") without a question ("human") '
                "before it"
            )
        asked = asked or role == "user"
    if "assistant" not in roles:
        raise ValueError(f'{where}: "conversations" has no answer ("gpt")')


def _image_names(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'{where}: got {value!r} as "image", expected a path or a list of them')
    return [name for name in names if name]


class LlavaCollator:
    """Conversations to a padded batch with labels on the assistant's turns and nowhere else.

    The labels are what an assistant's turn adds to the tokens that ask for it (the chat template up
    to there with `add_generation_prompt`), the mark at its end included. The processor runs once
    for the conversation and twice for each assistant's turn; `dataloader_num_workers` hides that.

    A batch has what the processor gives (`input_ids`, `attention_mask` [N, L], `pixel_values`,
    ...), `labels` [N, L], and "oasis_num_images" [N] (see `oasis.train.batch.images`).

    Args:
        processor: with a chat template, a `tokenizer` and an image processor.
        max_length (int or None): longest sample in tokens; a longer one is refused, since a cut
            could go through an image.
        open_image: makes an image of a path; default: `oasis.lab.data.pictures.open_picture`.
    """

    def __init__(
        self,
        processor: Any,
        max_length: int | None = None,
        open_image: Callable[[Path], Any] | None = None,
    ) -> None:
        self.processor = processor
        self.max_length = max_length
        self.open_image = open_picture if open_image is None else open_image

    def __call__(self, items: Sequence[Conversation | dict]) -> dict[str, Tensor]:
        """The batch of conversations, or of dicts with one as "conversation" whose numbers `TASK`
        and `ITEM` are passed on [N].
        """
        if not items:
            raise ValueError("items: got an empty batch, expected at least one conversation")
        rows = [self._encode(i["conversation"] if isinstance(i, dict) else i) for i in items]
        batch = {**self._pad(rows), **image_tensors(rows)}
        for key in (TASK, ITEM):
            values = [item[key] for item in items if isinstance(item, dict) and key in item]
            if len(values) == len(items):
                batch[key] = torch.tensor(values)
        return batch

    def _pad(self, rows: list[Row]) -> Row:
        """What has one number per token, padded to [N, L] on the tokenizer's side."""
        tokenizer = self.processor.tokenizer
        length = max(len(row["labels"]) for row in rows)
        fill = {"input_ids": tokenizer.pad_token_id or 0, "labels": IGNORED}
        batch = {}
        for key in [key for key in rows[0] if key not in IMAGE_KEYS]:
            batch[key] = rows[0][key].new_full((len(rows), length), fill.get(key, 0))
            for out, row in zip(batch[key], rows, strict=True):
                start = length - len(row[key]) if tokenizer.padding_side == "left" else 0
                out[start : start + len(row[key])] = row[key]
        return batch

    def _encode(self, talk: Conversation) -> Row:
        """One conversation: tensors [L] by key, image tensors as the processor makes them."""
        messages = talk.messages([self._image(path, talk) for path in talk.images])
        row = labelled(self.processor, messages, f"conversation {talk.id!r}")
        length = len(row["input_ids"])
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"conversation {talk.id!r}: got {length} tokens, expected at most "
                f"max_length={self.max_length}"
            )
        return row

    def _image(self, path: Path, talk: Conversation) -> Any:
        try:
            return self.open_image(path)
        except (OSError, ValueError) as error:
            where = talk.where or f"conversation {talk.id!r}"
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"{where}: the image {path} cannot be read ({error})") from error
