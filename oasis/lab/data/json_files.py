"""Text and JSON files as people have them: with a byte order mark, as JSON lines, or damaged."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode(content: bytes, where: str) -> str:
    """UTF-8 text, without a byte order mark at its beginning. ValueError beginning with `where`."""
    if content.startswith(UTF16):
        raise ValueError(f"{where}: UTF-16 text, expected UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{where}: not UTF-8 text (byte 0x{content[error.start]:02x} in line {line})"
        ) from None


def read_json(path: Path) -> Any:
    """The value in a JSON file. ValueError naming the file, and saying so of JSON lines.

    FileNotFoundError says what lies beside the file that is missing.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found ({_beside(path)})")
    text = decode(path.read_bytes(), str(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if is_json_lines(text):
            raise ValueError(
                f"{path}: holds JSON lines (one object in each line), expected one JSON list; put "
                "them between [ and ], with commas, or have them read as a .jsonl file"
            ) from None
        raise ValueError(f"{path}: not JSON ({error})") from error
    except RecursionError:
        raise ValueError(f"{path}: JSON with more levels than can be read") from None


def read_list(path: Path, least: int = 1) -> list[Any]:
    """The entries of a JSON file that holds a list of at least `least` of them."""
    entries = read_json(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: got {kind_of(entries)}, expected a list of entries")
    if len(entries) < least:
        raise ValueError(f"{path}: got an empty list, expected at least one entry")
    return entries


def is_json_lines(text: str) -> bool:
    """Whether each of the first two lines of a text is a JSON object."""
    lines = [line for line in text.split("\n", 3)[:3] if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def kind_of(value: Any) -> str:
    """What a JSON value is called: "an object", "a list", "a text", "a number", ..."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def _beside(path: Path) -> str:
    if not path.parent.is_dir():
        return "its folder is not there"
    names = sorted(other.name for other in path.parent.iterdir())
    return f"its folder has {', '.join(names)}" if names else "its folder is empty"
