"""Runs that are killed, run out of disk, or find damage: what is on disk, and how they go on."""

from __future__ import annotations

import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import Disk, Full, Snapshots, another_process_in, hurry, noticed
from tiny_text import NAMES, workspace

from oasis.command_line import DISK
from oasis.lab.config import RunConfig
from oasis.lab.record import checkpoints
from oasis.lab.record.checkpoints import Checkpoints
from oasis.lab.record.lock import Busy, locked, refuse_busy
from oasis.lab.record.log import read_events
from oasis.lab.run import run
from oasis.train import atomic

# A full disk at each of a run's writes takes a minute; of these, every so many are tried.
EACH = int(os.environ.get("OASIS_TEST_EACH", 9))


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


def test_killed_while_it_replaces_an_earlier_run_a_run_replaces_it_the_next_time(tmp_path, hurried):
    settings = config(tmp_path)
    shared = workspace(settings)
    run(settings.replace(seed=1), progress=False, workspace=shared)
    disk = Snapshots(settings.directory, tmp_path / "copies")
    with noticed(disk, hurried):
        run(settings.replace(stop_after=1), progress=False, workspace=shared)
    run(settings, progress=False, workspace=shared)
    whole = settings.directory.rename(tmp_path / "whole")
    early = [c for c in disk.copies if b'"seed": 0' not in (c / "events.jsonl").read_bytes()]
    assert len(early) >= 6
    for copy in early:
        shutil.rmtree(settings.directory, ignore_errors=True)
        copy.rename(settings.directory)
        run(settings, progress=False, workspace=shared)
        assert record(settings.directory) == record(whole), copy.name
        assert contents(settings.directory) == contents(whole), copy.name


@pytest.fixture
def small(tmp_path, hurried):
    """Settings, a workspace for them, and a whole run of them called "whole"."""
    settings = config(tmp_path)
    shared = workspace(settings)
    run(settings.replace(name="whole"), progress=False, workspace=shared)
    hurried.setattr(checkpoints, "KEPT", 2)
    return settings, shared, tmp_path / "whole"


def same(directory, whole) -> bool:
    weights = [(at / "adapter" / "adapter_model.safetensors").read_bytes()
               for at in (directory, whole)]  # fmt: skip
    return record(directory) == record(whole) and weights[0] == weights[1]


# ---- the end ----


def test_a_checkpoint_at_the_last_step_is_finished_without_another_step(small):
    settings, shared, whole = small
    # What a kill leaves that comes right after the checkpoint: no end, no weights.
    run(settings.replace(stop_after=2), progress=False, workspace=shared)
    log = settings.directory / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    checkpoint = settings.directory / "checkpoint-2"
    before = (checkpoint / "manifest.json").stat().st_mtime_ns
    result = run(settings.replace(resume=True), progress=False, workspace=shared)
    assert result.finished and result.steps == 2 and result.a_last is not None
    assert (result.candidates, len(result.history)) == (8, 2)
    assert same(settings.directory, whole)
    assert (checkpoint / "manifest.json").stat().st_mtime_ns == before


def test_resuming_where_it_was_to_stop_or_has_ended_changes_nothing(small):
    settings, shared, whole = small
    stopping = settings.replace(stop_after=1)
    stopped = run(stopping, progress=False, workspace=shared)
    again = run(stopping.replace(resume=True), progress=False, workspace=shared)
    assert (stopped.steps, again.steps, again.finished) == (1, 1, False)
    assert again.candidates == stopped.candidates == 4
    ended = whole / "events.jsonl"
    before = ended.read_bytes(), ended.stat().st_mtime_ns
    result = run(settings.replace(name="whole", resume=True), progress=False, workspace=shared)
    assert result.finished and result.a_last == read_events(ended)[-1]["a_last"]
    assert (ended.read_bytes(), ended.stat().st_mtime_ns) == before
    with pytest.raises(ValueError, match="seed: got 1, but the run to be resumed"):
        run(settings.replace(name="whole", resume=True, seed=1), progress=False, workspace=shared)


# ---- full disks ----


def test_a_full_disk_is_an_error_of_the_system_and_the_run_goes_on_when_it_has_room(small, hurried):
    settings, shared, whole = small
    every = Disk(settings.directory)
    with noticed(every, hurried):
        run(settings, progress=False, workspace=shared)
    for at in range(0, every.count - 5, EACH):  # the last changes only make room
        shutil.rmtree(settings.directory)
        disk = Full(settings.directory, at)
        with noticed(disk, hurried), pytest.raises(OSError):
            run(settings, progress=False, workspace=shared)
        run(settings.replace(resume=True), progress=False, workspace=shared)
        assert same(settings.directory, whole), at


@pytest.mark.parametrize("size", [8_000, 30_000])  # less than the weights, the optimizer's state
def test_what_the_writers_of_other_languages_cannot_write_is_an_error_of_the_system(small, size):
    settings, shared, whole = small
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            run(settings, progress=False, workspace=shared)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno in DISK and caught.value.filename
    run(settings.replace(resume=True), progress=False, workspace=shared)
    assert same(settings.directory, whole)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path, link = tmp_path / "settings.yaml", tmp_path / "link.yaml"
    atomic.write(path, "old")
    with pytest.raises(KeyError), atomic.replacing(path) as partial:
        partial.write_text("ne")
        raise KeyError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    link.symlink_to(path)
    atomic.write(link, b"new")
    assert link.is_symlink() and path.read_text() == "new"


# ---- folders ----


def test_a_run_touches_nothing_that_it_did_not_write(small):
    settings, shared, whole = small
    directory = settings.directory
    theirs = ["checkpoint-1/weights.bin", "checkpoint-2.bak/a", "checkpoint-best/a", "checkpoint-9"]
    theirs += ["checkpoint-3/manifest.json/a", "checkpoint-4/manifest.json"]
    theirs += ["checkpoint-500/trainer_state.json", "checkpoint-final.zip", "notes.txt"]
    for name in theirs:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("[" * 100_000 if name.endswith("json") else name)
    # A checkpoint of another run has a manifest, but goes with another record.
    run(settings.replace(name="other", seed=1), progress=False, workspace=shared)
    shutil.copytree(directory.parent / "other" / "checkpoint-2", directory / "checkpoint-7")
    theirs += [f"checkpoint-7/{p.name}" for p in (directory / "checkpoint-7").iterdir()]
    before = {name: (directory / name).read_bytes() for name in theirs}

    def goes_on(**changes):
        run(settings.replace(**changes), progress=False, workspace=shared)
        assert {name: (directory / name).read_bytes() for name in theirs} == before

    goes_on(stop_after=1)
    # A copy of its own that somebody keeps under another name goes with the record, too.
    kept = shutil.copytree(directory / "checkpoint-1.2", directory / "checkpoint-1.kept")
    theirs += [f"checkpoint-1.kept/{p.name}" for p in kept.iterdir()]
    before |= {name: (directory / name).read_bytes() for name in theirs}
    goes_on(resume=True)
    assert same(directory, whole)
    goes_on(seed=1)  # replaces the run
    own = {p.parent.name for p in directory.glob("*/manifest.json")}
    assert own - {"checkpoint-3", "checkpoint-4"} == {
        "checkpoint-7",
        "checkpoint-1.kept",
        "adapter",
        "checkpoint-1.2",
        "checkpoint-2",
    }
    # What is put beside the files of a checkpoint stays when they go.
    (directory / "checkpoint-2" / "mine").write_text("mine")
    theirs.append("checkpoint-2/mine")
    before["checkpoint-2/mine"] = b"mine"
    goes_on()
    assert [p.name for p in (directory / "checkpoint-2").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["config.yaml", "adapter/adapter_model.safetensors"])
def test_a_folder_of_something_else_is_refused(small, name):
    settings, shared, _ = small
    path = settings.directory / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match=f"{path.relative_to(settings.directory).parts[0]}: no"):
        run(settings, progress=False, workspace=shared)
    assert path.read_text() == "mine"
    assert {p.name for p in settings.directory.rglob("*")} == set(Path(name).parts)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/a", "a/", "a\0b", "a\nb", "x" * 101, "\u00e4" * 51]
)
def test_a_name_is_one_folder(tmp_path, name):
    with pytest.raises(ValueError, match="name: got .*, expected a (plain folder name|text)"):
        config(tmp_path, name=name)


def test_the_longest_name_serves(small):
    settings, shared, _ = small
    run(settings.replace(name="\u00e4" * 50, stop_after=1), progress=False, workspace=shared)


# ---- locks ----


def test_a_directory_has_one_run_at_a_time_and_a_dead_one_does_not_count(small):
    settings, shared, whole = small
    run(settings.replace(stop_after=1), progress=False, workspace=shared)
    before = {path: path.read_bytes() for path in settings.directory.rglob("*") if path.is_file()}
    with another_process_in(settings.directory):
        for resume in (False, True):
            with pytest.raises(Busy, match="another run is going on there"):
                run(settings.replace(resume=resume), progress=False)  # refused before it loads
            with pytest.raises(Busy):
                run(settings.replace(resume=resume), progress=False, workspace=shared)
        now = {path: path.read_bytes() for path in settings.directory.rglob("*") if path.is_file()}
        assert now == before
    run(settings.replace(resume=True), progress=False, workspace=shared)
    assert same(settings.directory, whole)


def test_the_lock_is_of_a_thread_and_can_be_taken_twice_in_it(tmp_path):
    with ThreadPoolExecutor(1) as pool, locked(tmp_path / "run"):
        with locked(tmp_path / "run"):
            pass
        with pytest.raises(Busy):
            pool.submit(refuse_busy, tmp_path / "run").result()
    refuse_busy(tmp_path / "run")
    refuse_busy(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


# ---- damage ----


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_falls_back_to_the_one_before(small, caplog):
    settings, shared, whole = small
    run(settings.replace(stop_after=2), progress=False, workspace=shared)
    log = settings.directory / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))  # without its end
    pristine = settings.directory.rename(settings.directory.with_name("pristine"))
    files = sorted(path.name for path in (pristine / "checkpoint-2").iterdir())
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "selection_state_0.pt"} <= set(files)
    for spoil in (flip, Path.unlink):
        for name in files:
            shutil.rmtree(settings.directory, ignore_errors=True)
            shutil.copytree(pristine, settings.directory)
            spoil(settings.directory / "checkpoint-2" / name)
            last = Checkpoints(settings.directory).last()
            assert last.step == 1, name
            assert name == "manifest.json" or f"checkpoint-2/{name}" in caplog.text
            caplog.clear()
    shutil.rmtree(settings.directory)
    shutil.copytree(pristine, settings.directory)
    manifest = settings.directory / "checkpoint-2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 9'))
    assert Checkpoints(settings.directory).last().step == 1
    # The one without a manifest is nobody's; the run goes on beside it.
    run(settings.replace(resume=True), progress=False, workspace=shared)
    assert same(settings.directory, whole)


def test_a_run_with_a_damaged_record_starts_anew_from_where_it_is_whole(small, caplog):
    settings, shared, whole = small
    run(settings.replace(stop_after=1), progress=False, workspace=shared)
    run(settings.replace(stop_after=2, resume=True), progress=False, workspace=shared)
    log = settings.directory / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:-3], lines[-3][:9], *lines[-2:-1]]))
    result = run(settings.replace(resume=True), progress=False, workspace=shared)
    assert result.finished and same(settings.directory, whole)
    assert "checkpoint-2 left alone: events.jsonl is damaged" in caplog.text
    log.write_bytes(b"{" + log.read_bytes())
    with pytest.raises(ValueError, match=r"events.jsonl: line 1 is damaged"):
        run(settings.replace(resume=True), progress=False, workspace=shared)
    assert log.read_bytes().startswith(b"{{")


def test_damaged_settings_are_named_and_left(small):
    settings, shared, _ = small
    run(settings.replace(stop_after=1), progress=False, workspace=shared)
    for content in (b"rank: [", b"\xff\xfe", b"3"):
        (settings.directory / "config.yaml").write_bytes(content)
        with pytest.raises(ValueError, match="run/config.yaml: "):
            run(settings.replace(resume=True), progress=False, workspace=shared)
        assert (settings.directory / "config.yaml").read_bytes() == content
