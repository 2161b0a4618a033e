"""A file of lines, written behind what a state on disk vouches for."""

from __future__ import annotations

import os
from pathlib import Path

from oasis.train.atomic import naming


class Lines:
    """Adds lines to a file. An OSError names it.

    Args:
        path: The file.
        offset: Bytes of an earlier file to keep, default 0; what follows them is cut off, so that
            what goes on from there does not repeat what came between a state and a kill.

    Raises:
        ValueError: the file has fewer bytes than those.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._file = path.open("r+b" if offset else "wb")
        size = self._file.seek(0, os.SEEK_END)
        if size < offset:
            self._file.close()
            raise ValueError(f"{path}: damaged, got {size} bytes, expected at least {offset}")
        with naming(path):
            self._file.truncate(offset)
        self._file.seek(offset)

    def add(self, line: bytes) -> None:
        """Write a line. It may wait in memory until `flush`."""
        with naming(self.path):
            self._file.write(line + b"\n")

    def flush(self) -> None:
        """Hand all lines to the system."""
        with naming(self.path):
            self._file.flush()

    def sync(self) -> None:
        """Have all lines on the disk."""
        self.flush()
        with naming(self.path):
            os.fsync(self._file.fileno())

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        with naming(self.path):
            self._file.close()
