"""What a kill or a full disk leaves behind: every change under a folder is noticed beforehand.

A change is what Python tells its audit hooks of (files opened for writing, renamed, removed;
folders made and removed), fsync, a line of a record and a file of torch.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import peft
import torch

from oasis.lab.record.log import EventLog

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
OTHERS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


class Disk:
    """Notices changes under `folder`. Derived classes say what becomes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.own = str(folder), 0, False

    def notice(self, half: Callable | None = None, *, frees: bool = False) -> None:
        """Called before a change. `half` is a context in which a part of it is made."""
        if not self.own:
            self.own = True
            try:
                self.before(half, frees)
            finally:
                self.own = False
                self.count += 1

    def before(self, half: Callable | None, frees: bool) -> None:
        """Nothing but counting."""

    def heard(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            if self.has(path) and flags & WRITES:
                self.notice(lambda undo=True: _opened(path, flags, undo))
        elif event in OTHERS and (self.has(arguments[0]) or arguments[-1] not in (-1, None)):
            self.notice(frees=event in ("os.remove", "os.rmdir"))

    def has(self, path) -> bool:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return text.startswith(self.folder)


class Snapshots(Disk):
    """Copies what a kill would leave: as it is before each change, and half-way in it. States that
    differ in the scratch space alone, which every start clears, count once.
    """

    def __init__(self, folder: Path, to: Path) -> None:
        super().__init__(folder)
        self.to, self.seen, self.copies = to, set(), []

    def before(self, half, frees):
        self.copy()
        if half is not None:
            with half():
                self.copy()

    def copy(self) -> None:
        root = Path(self.folder)
        state = frozenset(
            (path.relative_to(root), path.read_bytes() if path.is_file() else None)
            for path in root.rglob("*")
            if ".oasis" not in path.parts
        )
        if root.exists() and state not in self.seen:
            self.seen.add(state)
            self.copies.append(self.to / f"{len(self.copies)}")
            shutil.copytree(root, self.copies[-1])


class Full(Disk):
    """Has no room left from change number `at` on; things can still be removed."""

    def __init__(self, folder: Path, at: int) -> None:
        super().__init__(folder)
        self.at = at

    def before(self, half, frees):
        if self.count >= self.at and not frees:
            if half is not None:
                with half(undo=False) if self.count == self.at else contextlib.nullcontext():
                    pass
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _opened(path, flags: int, undo: bool = True) -> Iterator[None]:
    there = os.path.lexists(path)
    os.close(os.open(path, flags & ~os.O_EXCL, 0o644))
    yield
    if undo and not there:
        os.unlink(path)


@contextlib.contextmanager
def _torn_line(log: EventLog, undo: bool = True) -> Iterator[None]:
    offset = log.offset
    log._file.write(b'{"type": "st')
    log._file.flush()
    yield
    if undo:
        log._file.truncate(offset)
        log._file.seek(offset)


@contextlib.contextmanager
def _torn_file(path, undo: bool = True) -> Iterator[None]:
    Path(path).write_bytes(b"PK")
    yield


_disks: list[Disk] = []


def _hear(event: str, arguments: tuple) -> None:
    for disk in _disks:
        disk.heard(event, arguments)


sys.addaudithook(_hear)  # there is no way to take one back


@contextlib.contextmanager
def noticed(disk: Disk, monkeypatch) -> Iterator[None]:
    """What is done inside, `disk` notices."""
    write, save = EventLog.write, torch.save

    def write_line(log, event):
        disk.notice(lambda undo=True: _torn_line(log, undo))
        write(log, event)

    def save_file(thing, path, *args, **kwargs):
        try:
            disk.notice(lambda undo=True: _torn_file(path, undo))
        except OSError as error:  # as torch's own writer says it
            raise RuntimeError("[enforce fail at inline_container.cc:672]") from error
        save(thing, path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "write", write_line)
        patch.setattr(torch, "save", save_file)
        patch.setattr(os, "fsync", lambda descriptor: disk.notice())
        _disks.append(disk)
        try:
            yield
        finally:
            _disks.remove(disk)


def hurry(monkeypatch) -> None:
    """Leave out what takes the time of a tiny run and is none of ours."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    monkeypatch.setattr(peft.PeftModel, "create_or_update_model_card", lambda *_: None)


@contextlib.contextmanager
def another_process_in(directory):
    """Holds the lock of a run directory, as `oasis.lab.record.lock` does, and dies by SIGKILL."""
    folder = directory / ".oasis"
    folder.mkdir(parents=True, exist_ok=True)
    code = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
    code += "print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(folder / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.kill()
