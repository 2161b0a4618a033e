"""Runs that are killed, run out of disk, or find damage: what is on disk, and how they go on."""

from __future__ import annotations

import shutil

import pytest
from faults import Snapshots, hurry, noticed
from tiny_text import NAMES, workspace

from oasis.train import checkpoints
from oasis.train.config import RunConfig
from oasis.train.record import read_events
from oasis.train.run import run


def config(out, **changes) -> RunConfig:
    """Two steps with a checkpoint after each."""
    settings = {"out": str(out), "tasks": NAMES, "arrivals": [8, 8], "held_out": 2}
    settings |= {"batch_size": 4, "save_steps": 1, "logging_steps": 0, "model": "tiny", "rank": 2}
    return RunConfig.from_mapping(
        {**settings, "device": "cpu", "dtype": "float32", "name": "run", **changes}
    )


def record(directory) -> list[dict]:
    """The record without times."""
    events = read_events(directory / "events.jsonl")
    return [{k: v for k, v in event.items() if not k.endswith("seconds")} for event in events]


def contents(directory) -> dict:
    """Names in a run directory; the content of its weights and settings."""
    names = {str(path.relative_to(directory)): None for path in directory.rglob("*")}
    for name in ("adapter/adapter_model.safetensors", "config.yaml"):
        names[name] = (directory / name).read_bytes()
    return names


@pytest.fixture
def hurried(monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr(checkpoints, "KEPT", 1)  # the first makes room for the second
    return monkeypatch


def test_killed_at_any_write_and_resumed_a_run_ends_as_if_never_stopped(tmp_path, hurried):
    settings = config(tmp_path)
    shared = workspace(settings)
    disk = Snapshots(settings.directory, tmp_path / "copies")
    with noticed(disk, hurried):
        run(settings, progress=False, workspace=shared)
    whole = settings.directory.rename(tmp_path / "whole")
    assert len(disk.copies) >= 25
    for copy in disk.copies:
        shutil.rmtree(settings.directory, ignore_errors=True)
        copy.rename(settings.directory)
        run(settings.replace(resume=True), progress=False, workspace=shared)
        assert record(settings.directory) == record(whole), copy.name
        assert contents(settings.directory) == contents(whole), copy.name
