"""A list of the files that were written to a folder, with their sizes and SHA-256.

It is the last of them to be written, so a folder is whole if its files are what its manifest says.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from oasis.lab.record.events import VERSION
from oasis.train import atomic

NAME = "manifest.json"

logger = logging.getLogger(__name__)


def seal(folder: Path, **about: Any) -> dict[str, Any]:
    """Bring all files in `folder` to the disk and list them, beside what `about` says of them; what
    `read` will say.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / NAME:
            atomic.sync(path)
            files[path.relative_to(folder).as_posix()] = _summary(path)
    content = {"version": VERSION, **about, "files": files}
    text = json.dumps({"content": content, "sha256": _digest(content)}, indent=1)
    atomic.write(folder / NAME, text + "\n")
    return content


def read(folder: Path) -> dict[str, Any] | None:
    """What `seal` wrote: `about`, and "files" (name: [size, SHA-256]). None for anything else,
    which is said where it is a manifest that is damaged.
    """
    try:
        found = json.loads((folder / NAME).read_bytes())
        content = found["content"]
        if found["sha256"] == _digest(content):
            return content
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None  # somebody else's folder
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    logger.warning("%s is damaged: the folder is left alone", folder / NAME)
    return None


def damage(folder: Path, content: dict[str, Any]) -> str | None:
    """What is wrong with the files that a manifest lists, or None. A file that cannot be opened is
    an OSError, not damage.
    """
    for name, summary in content["files"].items():
        try:
            if _summary(folder / name) != summary:
                return f"{folder / name} is not what was written"
        except FileNotFoundError:
            return f"{folder / name} is missing"
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"{folder / name} cannot be read"
    return None


def remove(folder: Path, trash: Path) -> None:
    """Delete the files that the folder's manifest lists, and the folder unless there is more in it.
    A folder without a manifest is left alone. `trash` is a name that is free, for one at a time.
    """
    content = read(folder)
    if content is None:
        return
    ours = {folder / name for name in (*content["files"], NAME)}
    if all(path in ours or path.is_dir() for path in folder.rglob("*")):
        trash.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, trash)  # so that it is gone at once, not file by file
        shutil.rmtree(trash)
    else:
        for path in ours:
            path.unlink(missing_ok=True)


def _summary(path: Path) -> list:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        return [file.tell(), digest.hexdigest()]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
