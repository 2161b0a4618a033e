"""Names that become a folder."""

from __future__ import annotations

import os
from pathlib import Path

LONGEST = 100  # bytes


def check_folder_name(setting: str, name: str) -> None:
    """ValueError where `name` is not one component of a path, of at most 100 bytes."""
    plain = name not in ("", ".", "..") and Path(name).name == name
    if not plain or not name.isprintable() or len(os.fsencode(name)) > LONGEST:
        raise ValueError(
            f"{setting}: got {name!r}, expected a plain folder name of at most {LONGEST} bytes"
        )
