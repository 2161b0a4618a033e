"""The files of a selection: written beside their place, brought there whole, resumed after a kill.

While it goes on, the folder `OUT.partial` holds the kept rows and the record so far, and a state
that says how far both had come when it was written; what is behind that is cut off on the way back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import torch

from oasis.lab.record.lock import PRIVATE
from oasis.train import atomic

KEPT, RECORD, STATE = "kept.jsonl", "record.jsonl", "state.pt"


class Files:
    """The kept rows and the record of a selection into `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.record_path = out.with_name(f"{out.stem}.record.jsonl")
        self.folder = out.with_name(f"{out.name}.partial")
        self._kept: BinaryIO | None = None
        self._record: BinaryIO | None = None

    def refuse_existing(self) -> None:
        """ValueError where a file is in the way."""
        for path in (self.out, self.record_path):
            if os.path.lexists(path):
                raise ValueError(
                    f"out: {path} is there already; --overwrite replaces it, another --out does not"
                )

    def state(self) -> dict[str, Any] | None:
        """That of a selection that did not come to its end, or None."""
        try:
            return torch.load(self.folder / STATE, weights_only=True)
        except FileNotFoundError:
            return None
        except (RuntimeError, EOFError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.folder / STATE}: cannot be read ({error}); --overwrite starts anew"
            ) from error

    def discard(self) -> None:
        """Forget a selection that did not come to its end."""
        for name in (STATE, KEPT, RECORD):
            (self.folder / name).unlink(missing_ok=True)

    def open(self, sizes: tuple[int, int] = (0, 0)) -> None:
        """Go on behind the first bytes of kept rows and record, `sizes` of them."""
        self._kept, self._record = (
            _open(self.folder / name, size)
            for name, size in zip((KEPT, RECORD), sizes, strict=True)
        )

    def keep(self, line: str) -> None:
        """Add a row to the kept ones."""
        assert self._kept is not None
        with atomic.naming(self.folder / KEPT):
            self._kept.write(line.encode() + b"\n")

    def note(self, line: str) -> None:
        """Add a line to the record."""
        assert self._record is not None
        with atomic.naming(self.folder / RECORD):
            self._record.write(line.encode() + b"\n")

    def save(self, **state: Any) -> None:
        """Bring all so far to the disk, then the state that vouches for it."""
        assert self._kept is not None and self._record is not None
        for file in (self._kept, self._record):
            file.flush()
            os.fsync(file.fileno())
        sizes = [self._kept.tell(), self._record.tell()]
        with atomic.replacing(self.folder / STATE) as path:
            torch.save({**state, "sizes": sizes}, path)

    def finish(self) -> None:
        """Bring both files to their places, the kept rows last."""
        self.close()
        for name, target in ((RECORD, self.record_path), (KEPT, self.out)):
            with contextlib.suppress(FileNotFoundError):  # brought there before a kill
                os.replace(self.folder / name, target)
        atomic.sync(self.out.parent)
        self.discard()

    def leave(self) -> None:
        """Remove the folder where nothing is in it any more, once its lock is free."""
        if not any(path.name != PRIVATE for path in self.folder.iterdir()):
            shutil.rmtree(self.folder)

    def close(self) -> None:
        for file in (self._kept, self._record):
            if file is not None:
                file.close()
        self._kept = self._record = None


def _open(path: Path, size: int) -> BinaryIO:
    file = path.open("r+b" if size else "wb")
    file.truncate(size)
    file.seek(size)
    return file
