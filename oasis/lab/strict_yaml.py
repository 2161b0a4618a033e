"""YAML as settings need it: no key twice, no aliases that grow, errors in one line with theirs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from oasis.lab.data.json_files import decode

# Anchors and aliases are fine (grids share settings by them) until what they stand for, written
# out, is more than any file of settings: nine lines can stand for a billion values.
MOST_VALUES = 100_000
MOST_LEVELS = 64


_MERGE = type("Merge", (), {"__repr__": lambda self: "<<"})()  # of a plain `<<`, no text


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself keeps the last of two equal keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.place: list[str] = []  # of the node that is being read: ".run", "[0]"
        self.settings: dict[yaml.Node, str] = {}  # what complete nodes are called
        self.sizes: dict[yaml.Node, tuple[int, int]] = {}  # their values and levels

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        if len(self.place) >= MOST_LEVELS:
            raise _error(f"more than {MOST_LEVELS} levels", event.start_mark)
        self.place.append(f"[{index}]" if isinstance(index, int) else f".{_text_of(index)}")
        node = super().compose_node(parent, index)
        assert node is not None  # where there is an event, there is a node
        self.settings.setdefault(node, "".join(self.place).strip("."))  # an alias: its anchor's
        self.place.pop()
        if not isinstance(event, yaml.AliasEvent):
            self._measure(node)
        elif node not in self.sizes:
            raise _error(f"{event.anchor}: the alias is inside its own anchor", event.start_mark)
        return node

    def _measure(self, node: yaml.Node) -> None:
        """Number of values and levels of a node that is complete, aliases written out."""
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        sizes = [self.sizes[part] for part in parts]
        values = 1 + sum(values for values, _ in sizes)
        levels = 1 + max((levels for _, levels in sizes), default=0)
        self.sizes[node] = values, levels
        if values > MOST_VALUES or levels > MOST_LEVELS:
            raise _error(
                f"more than {MOST_VALUES:,} values or {MOST_LEVELS} levels, aliases written out",
                node.start_mark,
            )

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Write the keys of what `<<` merges into a node: its own go first, then those of earlier
        sources. (PyYAML's own takes the wrong value where a source has merged another.)
        """
        own: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self._key(key)
            if name in own:
                lines = [pair.start_mark.line + 1 for pair in (own[name][0], key)]
                twice = "the key is there twice, in lines {} and {}".format(*lines)
                raise _error(f"{name}: {twice}", key.start_mark)
            own[name] = key, value
        if _MERGE in own:
            _, value = own.pop(_MERGE)
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise _error("<<: expected a mapping or a list of them", source.start_mark)
                self.flatten_mapping(source)
                for key, value in source.value:
                    merged.setdefault(self._key(key), (key, value))
        node.value = [*{**merged, **own}.values()]

    def _key(self, key: yaml.Node) -> Any:
        if not isinstance(key, yaml.ScalarNode):
            return id(key)  # no setting; PyYAML refuses it
        if key.tag == "tag:yaml.org,2002:value":  # a plain "="
            key.tag = "tag:yaml.org,2002:str"
        if key.tag == "tag:yaml.org,2002:merge":
            return _MERGE
        name = self.construct_object(key)
        if not isinstance(name, Hashable):  # `? !!map text`
            raise _error(f"{key.value}: expected a text or a number for a key", key.start_mark)
        return name

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # what no message could name: more digits than Python writes
            return value
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            # What Python makes of it: a month 13, a number of 5,000 digits, `!!bool perhaps`.
            text = getattr(node, "value", "")
            shown = f"{text[:40]!r}" if isinstance(text, str) else node.tag
            name = f"{where}: " if (where := self.settings.get(node)) else ""
            raise _error(f"{name}{shown} cannot be read ({error})", node.start_mark) from error


def _text_of(key: yaml.Node | None) -> str:
    return str(key.value) if isinstance(key, yaml.ScalarNode) else ""


def _error(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def parse(text: str, name: str) -> Any:
    """What `text` says. ValueError, `name`:line: what is wrong, where it is not such YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{name}:{line}: {chr(error.character)!r} is not allowed") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        parts = [error.problem, error.context]
        said = " ".join(part for part in parts if part)
        raise ValueError(f"{name}:{line}: {said}") from error


def read(path: str | Path) -> Any:
    """What the file says. ValueError as for `parse`; OSError where it cannot be read."""
    return parse(_text(path), str(path))


@contextmanager
def located(path: str | Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """ValueErrors and TypeErrors that begin with a setting of the file (`ratio: got ...`,
    `policies[1].run.rank: ...`) get file and line in front, also where the file's `base` has it.

    Not those of `overrides` (key=value), which are in no file.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        setting, colon, _ = str(error).partition(":")
        given = [text.partition("=")[0] for text in overrides]
        if not colon or any(f"{setting}.".startswith(f"{key}.") for key in given):
            raise
        place = _place(Path(path), re.findall(r"[^.\[\]]+", setting))
        if place is None:
            raise
        raise type(error)(f"{place}: {error}") from error


def _place(path: Path, setting: list[str]) -> str | None:
    """`file:line` of a setting, or of the last of the mappings around it that the file has."""
    try:
        root = yaml.compose(_text(path), _Loader)
    except yaml.YAMLError:  # then the error is about that
        return None
    lines = _lines(root, setting)
    _, base = _step(root, "base")
    if base is not None and len(lines) < len(setting):
        other = path.parent / base.value
        found = _lines(yaml.compose(_text(other), _Loader), setting)
        if len(found) == len(setting):
            return f"{other}:{found[-1]}"
    return f"{path}:{lines[-1]}" if lines else None


def _lines(node: yaml.Node | None, setting: list[str]) -> list[int]:
    """The line of each part of a setting, as far as the file has them."""
    lines = []
    for part in setting:
        line, node = _step(node, part)
        if line is None:
            break
        lines.append(line)
    return lines


def _step(node: yaml.Node | None, part: str) -> tuple[int | None, yaml.Node | None]:
    """Line and value of the entry `part` of a mapping, or number `part` of a list."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    if isinstance(node, yaml.SequenceNode):
        pairs = [(item, item) for item in node.value]
        pairs = pairs[int(part) : int(part) + 1] if part.isdecimal() else []
    else:
        pairs = [pair for pair in pairs if pair[0].value == part]
    return (pairs[0][0].start_mark.line + 1, pairs[0][1]) if pairs else (None, None)


def _text(path: str | Path) -> str:
    return decode(Path(path).read_bytes(), str(path))
