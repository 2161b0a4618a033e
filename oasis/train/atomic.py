"""Files that are the old ones or the new ones, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

PARTIAL = f".{'?' * 32}.partial"  # names of files that are being written


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A new name beside `path` to write to; what is there in the end takes the place of `path`.

    Where the block raises, `path` is left as it was. The folder must exist.
    """
    path = Path(os.path.realpath(path))  # a link stays one, and its target is replaced
    temporary = path.with_name(PARTIAL.replace("?" * 32, uuid.uuid4().hex))
    try:
        with naming(path, instead_of=temporary):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def write(path: str | Path, content: str | bytes) -> None:
    """Write a whole file."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: str | Path) -> None:
    """Have what is in a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(Path(path)):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Have an OSError name `path` where it names no file, or a file that nobody knows."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) == str(instead_of):
            error.filename, error.filename2 = str(path), None
        raise


@contextlib.contextmanager
def failed_writes_named(folder: str | Path) -> Iterator[None]:
    """OSError, as Python's own files raise it, for what the writers of torch (C++) and safetensors
    (Rust) raise where the system does not take what they write into `folder`.
    """
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        known = re.search(r"\(os error (\d+)\)", str(error))
        if known is None and not re.search("inline_container|iostream", str(error)):
            raise
        # torch's writer does not say why.
        code = int(known[1]) if known else errno.EIO if _has_room(folder) else errno.ENOSPC
        raise OSError(code, os.strerror(code), str(folder)) from error


def _has_room(folder: str | Path) -> bool:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "."
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize > 1 << 20
