"""Names that become a folder."""

from __future__ import annotations

import os
from pathlib import Path

LONGEST = 100  # bytes


def is_folder_name(name: str) -> bool:
    """Whether `name` is one component of a path, of at most 100 bytes."""
    plain = name not in ("", ".", "..") and Path(name).name == name
    return plain and name.isprintable() and len(os.fsencode(name)) <= LONGEST


def check_folder_name(setting: str, name: str) -> None:
    """ValueError where `name` is no folder name."""
    if not is_folder_name(name):
        raise ValueError(
            f"{setting}: got {name!r}, expected a plain folder name of at most {LONGEST} bytes"
        )
