"""The checkpoints of a run: which are its own, which is the last whole one, how they come and go.

The Trainer writes one into the run's scratch folder. There it is sealed (manifest.py), together
with how far the record had come and its digest; then one rename makes it a checkpoint. So a
checkpoint is never half written, and what does not go with the record is none of this run's,
whatever it is called: it is neither resumed from nor touched.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from oasis.lab.record import manifest
from oasis.lab.record.lock import PRIVATE
from oasis.lab.record.log import ADAPTER, EVENTS, EventLog, digests
from oasis.train import atomic

KEPT = 2  # checkpoints of a run; the one before the last serves where that is damaged

logger = logging.get_logger(__name__)


def scratch(directory: Path) -> Path:
    """Where a run writes what is to appear in its directory at once."""
    return directory / PRIVATE / "partial"


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    content: dict[str, Any]  # of its manifest

    @property
    def step(self) -> int:
        return self.content["step"]

    @property
    def record(self) -> int:
        """Bytes of the record up to the checkpoint."""
        return self.content["record"][0]


class Checkpoints:
    """Those of the run in `directory`, oldest first in `found`. The run's lock must be held."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        every = [
            Checkpoint(folder, content)
            for folder in directory.glob("checkpoint-*")
            if not folder.is_symlink()
            and "record" in (content := manifest.read(folder) or {})
            and content.get("name", folder.name) == folder.name  # a copy is somebody else's
        ]
        known = digests(directory / EVENTS, [checkpoint.record for checkpoint in every])
        own = [c for c in every if known.get(c.record) == c.content["record"][1]]
        for other in {c.folder for c in every} - {c.folder for c in own}:
            logger.warning("%s left alone: %s is damaged, or another run's", other, EVENTS)
        self.found = sorted(own, key=lambda checkpoint: checkpoint.step)

    def last(self) -> Checkpoint | None:
        """The last one that is whole. Damaged ones behind it are removed, and those too many."""
        while self.found:
            checkpoint = self.found[-1]
            what = manifest.damage(checkpoint.folder, checkpoint.content)
            if what is None:
                self.drop(KEPT)  # a kill may have come before that
                return checkpoint
            logger.warning("%s: the run goes on from the checkpoint before, if any", what)
            self._remove(-1)
        return None

    def add(self, step: int, log: EventLog) -> None:
        """Take what the Trainer wrote for `step` from the scratch folder; drop the oldest."""
        written = scratch(self.directory) / f"checkpoint-{step}"
        log.sync()
        folder = _free(self.directory / written.name)
        about = {"name": folder.name, "step": step, "record": [log.offset, log.digest]}
        content = manifest.seal(written, **about)
        os.rename(written, folder)
        atomic.sync(self.directory)
        self.found.append(Checkpoint(folder, content))
        self.drop(KEPT)

    def drop(self, kept: int = 0) -> None:
        """Remove all but the last `kept`."""
        while len(self.found) > kept:
            self._remove(0)

    def _remove(self, index: int) -> None:
        manifest.remove(self.found.pop(index).folder, scratch(self.directory) / "removed")


def _free(path: Path) -> Path:
    """`path`, or one like it where that is something else's."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def clean(directory: Path) -> None:
    """Remove the scratch folder, and files that a kill left half written."""
    if scratch(directory).exists():
        shutil.rmtree(scratch(directory))
    for path in directory.glob(atomic.PARTIAL):
        path.unlink()


def save_adapter(model: Any, directory: Path) -> None:
    """Write the LoRA weights to `directory`/adapter, file by file, its manifest last."""
    written, folder = scratch(directory) / ADAPTER, directory / ADAPTER
    with atomic.failed_writes_named(written):
        model.save_pretrained(written)
    files = manifest.seal(written)["files"]
    folder.mkdir(exist_ok=True)
    for name in (*files, manifest.NAME):
        os.replace(written / name, folder / name)
    atomic.sync(folder)


def erase(directory: Path) -> None:
    """Remove checkpoints, weights and events of the run in `directory`. Its record is there still,
    but empty, so that its folder is a run's at every moment.
    """
    Checkpoints(directory).drop()
    manifest.remove(directory / ADAPTER, scratch(directory) / "removed")
    with (directory / EVENTS).open("wb"):
        pass
