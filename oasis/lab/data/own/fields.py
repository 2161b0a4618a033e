"""What the fields of a row mean: which of them ask, which answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oasis.lab.data.json_files import kind_of
from oasis.lab.data.llava import MARK, ROLES, Turn, with_marks
from oasis.lab.data.own.rows import Row
from oasis.lab.data.pictures import Picture, pictures_of

# Turns in one field, in the order they are looked for.
TALKS = ("messages", "conversations")
# (question, context or None, answer), in the order they are looked for.
PAIRS = (
    ("prompt", None, "completion"),
    ("prompt", None, "answer"),
    ("prompt", None, "response"),
    ("instruction", "input", "output"),
    ("instruction", "context", "response"),
    ("question", None, "answer"),
    ("text", None, "answer"),
    ("sentence", None, "label"),
)
TEXT = "text"
IMAGES = ("image", "images")
INSIDE = ("image", "path", "url", "base64")  # where a part of a turn would hold its own
CHAT, PAIR, WHOLE = "chat", "pair", "text"  # kinds of samples


@dataclass(frozen=True)
class Sample:
    """What a row says: turns of (role, text), role "user", "assistant" or "system".

    `kind`: "chat" (turns as they are), "pair" (a prompt and its completion) or "text" (one turn of
    the assistant, learnt as a whole). `images` stand where the texts have "<image>".
    """

    key: str
    kind: str
    turns: tuple[Turn, ...]
    images: tuple[Picture, ...] = ()

    @property
    def answer(self) -> str | None:
        """The answer, where there is one and it comes last."""
        answers = [text for role, text in self.turns if role == "assistant"]
        single = self.kind != WHOLE and len(answers) == 1 and self.turns[-1][0] == "assistant"
        return answers[0] if single else None

    @property
    def sides(self) -> tuple[str, str]:
        """What is asked, and what is answered, each in one text."""
        asked = [text for role, text in self.turns if role != "assistant"]
        return "\n".join(asked), "\n".join(t for role, t in self.turns if role == "assistant")

    @property
    def empty(self) -> bool:
        """Whether there is nothing to learn, or nothing that asks for it."""
        answers = any(text.strip() for role, text in self.turns if role == "assistant")
        asks = self.kind == WHOLE or any(t.strip() for role, t in self.turns if role != "assistant")
        return not (answers and asks)


@dataclass(frozen=True)
class Layout:
    """The fields of a file: `names` are those of turns (one), of question, context and answer
    (three, the context may be None), or of a text (one).

    `image` is that of images, None one of `IMAGES`; their paths are relative to `folder`. `vision`:
    whether there is a model for them.
    """

    kind: str
    names: tuple[str | None, ...]
    image: str | None = None
    folder: Path = Path()
    vision: bool = False

    def sample(self, row: Row) -> Sample:
        """ValueError naming row and field where a value is missing or of another type, or where
        there are images without marks, marks without images, or none that take them.
        """
        sample, images = self._texts(row), self._images(row)
        if not self.vision:
            if images or any(_shows(row.values.get(name)) for name in self.names if name):
                raise ValueError(f"{row.key}: has an image, and the model takes text alone")
            return sample
        if sample.kind == WHOLE:  # what is said of the images
            if not images:
                return sample
            asked = ("user", MARK * len(images))
            turns = with_marks((asked, *sample.turns), len(images), row.key)
            return replace(sample, kind=CHAT, turns=turns, images=images)
        answered = any(role == "assistant" for role, _ in sample.turns)  # else it is empty
        turns = with_marks(sample.turns, len(images), row.key) if answered else sample.turns
        return replace(sample, turns=turns, images=images)

    def _images(self, row: Row) -> tuple[Picture, ...]:
        names = IMAGES if self.image is None else (self.image,)
        found = [name for name in names if row.values.get(name)]
        if len(found) > 1:
            raise ValueError(f"{row.key}: got both {' and '.join(found)}; say which: data.image")
        if not found:
            return ()
        return pictures_of(row.values[found[0]], self.folder, f'{row.key}: "{found[0]}"')

    def _texts(self, row: Row) -> Sample:
        if self.kind == CHAT:
            return Sample(row.key, CHAT, _turns(row, self.names[0]))
        if self.kind == WHOLE:
            return Sample(row.key, WHOLE, (("assistant", _text(row, self.names[0])),))
        question, context, answer = self.names
        if isinstance(_value(row, question), list):  # turns that end in a question
            asked = _turns(row, question)
            replied = _value(row, answer)
            said = _turns(row, answer) if isinstance(replied, list) else (
                ("assistant", _text(row, answer)),
            )  # fmt: skip
            return Sample(row.key, CHAT, (*asked, *said))
        prompt = _text(row, question)
        more = _text(row, context) if _value(row, context) is not None else ""
        prompt = f"{prompt}\n{more}" if more.strip() else prompt
        return Sample(row.key, PAIR, (("user", prompt), ("assistant", _text(row, answer))))


def find_layout(
    row: Row,
    *,
    prompt: str | None = None,
    completion: str | None = None,
    messages: str | None = None,
    text: str | None = None,
    **images: Any,
) -> Layout:
    """The layout of a file whose first row is `row`: the named fields, or the first of `TALKS`,
    `PAIRS` and `TEXT` that are there; `images`: what `Layout` knows of them. ValueError where there
    are no such fields.
    """
    given = [messages is not None, text is not None, (prompt or completion) is not None]
    if sum(given) > 1 or (prompt is None) != (completion is None):
        raise ValueError(
            "data: expected the fields prompt and completion, or messages, or text; got "
            + ", ".join(
                name
                for name, value in {
                    "prompt": prompt, "completion": completion, "messages": messages, "text": text
                }.items() if value is not None
            )
        )  # fmt: skip
    image = images.get("image")
    if image is not None and image not in row.values:
        raise ValueError(f'{row.key}: no field "{image}", got {_fields(row)}')
    if messages is not None:
        layout = Layout(CHAT, (messages,), **images)
    elif text is not None:
        layout = Layout(WHOLE, (text,), **images)
    elif prompt is not None:
        layout = Layout(PAIR, (prompt, None, completion), **images)
    else:
        return replace(_known(row), **images)
    for name in layout.names:
        if name is not None and name not in row.values:
            raise ValueError(f'{row.key}: no field "{name}", got {_fields(row)}')
    return layout


def _known(row: Row) -> Layout:
    for name in TALKS:
        if name in row.values:
            return Layout(CHAT, (name,))
    for names in PAIRS:
        question, context, answer = names
        if question in row.values and answer in row.values:
            return Layout(PAIR, names)
    if TEXT in row.values:
        return Layout(WHOLE, (TEXT,))
    known = [*TALKS, *(f"{question} and {answer}" for question, _, answer in PAIRS), TEXT]
    raise ValueError(
        f"{row.key}: got {_fields(row)}, expected {', or '.join(known)}; or say which: "
        "data.prompt and data.completion, data.messages, or data.text"
    )


def _fields(row: Row) -> str:
    return "the fields " + ", ".join(f'"{name}"' for name in row.values) if row.values else "none"


def _value(row: Row, name: str | None) -> Any:
    return None if name is None else row.values.get(name)


def _text(row: Row, name: str | None) -> str:
    if name not in row.values:
        raise ValueError(f'{row.key}: no field "{name}", got {_fields(row)}')
    return _as_text(row.values[name], row.key, f'"{name}"')


def _as_text(value: Any, key: str, field: str) -> str:
    """A text; a whole number (a label, a sum) is one too, and nothing is an empty one."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{key}: got {kind_of(value)} as {field}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise ValueError(
            f"{key}: got half a character ({half!r}) in {field}, expected a text"
        ) from None
    return value


def _turns(row: Row, name: str | None) -> tuple[tuple[str, str], ...]:
    if name not in row.values:
        raise ValueError(f'{row.key}: no field "{name}", got {_fields(row)}')
    value = row.values[name]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f'{row.key}: got {kind_of(value)} as "{name}", expected a list of turns')
    return tuple(_turn(turn, row.key, f'"{name}"[{at}]') for at, turn in enumerate(value))


def _turn(turn: Any, key: str, where: str) -> tuple[str, str]:
    """(role, text) of {"role", "content"}, or of LLaVA's {"from", "value"}."""
    if not isinstance(turn, dict):
        raise ValueError(f"{key}: got {kind_of(turn)} as {where}, expected an object")
    named = ("role", "content") if "role" in turn else ("from", "value")
    given = turn.get(named[0])
    role = ROLES.get(given, given) if isinstance(given, str) else None
    if role is None or role not in ROLES.values():
        raise ValueError(
            f'{key}: got the role {given!r} in {where}, expected "role" or "from" with one of '
            f"{', '.join(dict.fromkeys((*ROLES.values(), *ROLES)))}"
        )
    if turn.get("tool_calls"):
        raise ValueError(f"{key}: {where} has tool_calls, which are not read")
    content = turn.get(named[1])
    if isinstance(content, list):
        return role, _parts(content, key, f'{where} "{named[1]}"')
    return role, _as_text(content, key, f'{where} "{named[1]}"')


def _shows(turns: Any) -> bool:
    """Whether a value is turns in parts with an image among them."""
    parts = [
        part
        for turn in (turns if isinstance(turns, list) else ())
        if isinstance(turn, dict) and isinstance(turn.get("content"), list)
        for part in turn["content"]
    ]
    return any(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def _parts(parts: list[Any], key: str, where: str) -> str:
    """The text of a turn in parts, with a mark where an image goes."""
    written = []
    for at, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            written.append(_as_text(part.get("text"), key, f'{where}[{at}] "text"'))
        elif kind == "image" and not any(part.get(name) for name in INSIDE):
            written.append(MARK)
        else:
            got = repr(kind) if isinstance(part, dict) else kind_of(part)
            raise ValueError(
                f'{key}: got {got} as {where}[{at}], expected {{"type": "text", "text": ...}}, or '
                f'{{"type": "image"}} with its image in a field of the row ({", ".join(IMAGES)})'
            )
    return "".join(written)
