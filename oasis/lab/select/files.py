"""The files of a selection: written beside their place, brought there whole, resumed after a kill.

While it goes on, the folder `OUT.partial` holds the kept rows and the record so far, and a state
that says how far both had come when it was written; what is behind that is cut off on the way back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oasis.lab.record.lines import Lines
from oasis.lab.record.lock import PRIVATE
from oasis.train import atomic

KEPT, RECORD, STATE = "kept.jsonl", "record.jsonl", "state.pt"


@dataclass(frozen=True)
class State:
    """How far a selection with these `settings` (JSON) had come.

    `counts` of the rows that were read, whose `digest` this is; `sizes`: bytes of kept rows and
    record; `scorer`: what later batches depend on.
    """

    settings: str
    counts: dict[str, int]
    seconds: float
    digest: str
    scorer: dict[str, Any]
    done: bool
    sizes: list[int]


class Files:
    """The kept rows and the record of a selection into `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.record_path = out.with_name(f"{out.stem}.record.jsonl")
        self.folder = out.with_name(f"{out.name}.partial")
        self._written: list[Lines] = []

    def refuse_source(self, source: str) -> None:
        """ValueError where a file to read is, by whatever name, one that is written or removed."""
        for path in (self.out, self.record_path, *self._partial()):
            if path.exists() and os.path.exists(source) and path.samefile(source):
                raise ValueError(f"out: {path} is the file to select from, {source}")

    def refuse_existing(self, settings: str) -> None:
        """ValueError where a file is in the way, and is none that a selection with these `settings`
        (JSON) brought there before it was killed.
        """
        state = self.state()
        done = state is not None and state.done and state.settings == settings
        for name, path in ((RECORD, self.record_path), (KEPT, self.out)):
            brought = done and not (self.folder / name).exists()
            if os.path.lexists(path) and not brought:
                raise ValueError(
                    f"out: {path} is there already; --overwrite replaces it, another --out does not"
                )

    def state(self) -> State | None:
        """That of a selection that did not come to its end, or None.

        Raises:
            ValueError: it is damaged.
        """
        path = self.folder / STATE
        try:
            return State(**torch.load(path, weights_only=True))
        except FileNotFoundError:
            return None
        except OSError:
            raise
        except Exception as error:  # a damaged file can raise any of zip's, pickle's and torch's
            raise ValueError(
                f"{path}: damaged ({type(error).__name__}); --overwrite starts anew"
            ) from error

    def discard(self) -> None:
        """Forget a selection that did not come to its end."""
        for path in self._partial():
            path.unlink(missing_ok=True)

    def _partial(self) -> list[Path]:
        return [self.folder / name for name in (STATE, KEPT, RECORD)]

    def open(self, sizes: Sequence[int] = (0, 0)) -> None:
        """Go on behind the first bytes of kept rows and record, `sizes` of them."""
        for name, size in zip((KEPT, RECORD), sizes, strict=True):
            self._written.append(Lines(self.folder / name, size))

    def keep(self, line: str) -> None:
        """Add a row to the kept ones."""
        self._written[0].add(line.encode())

    def note(self, line: str) -> None:
        """Add a line to the record."""
        self._written[1].add(line.encode())

    def save(self, **state: Any) -> None:
        """Bring all so far to the disk, then the state (but its sizes) that vouches for it."""
        for lines in self._written:
            lines.sync()
        whole = State(**state, sizes=[lines.offset for lines in self._written])
        path = self.folder / STATE
        with atomic.failed_writes_named(path), atomic.replacing(path) as partial:
            torch.save(vars(whole), partial)

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
        while self._written:
            self._written.pop().close()
