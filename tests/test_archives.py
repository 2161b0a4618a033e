"""Reading files out of wheels, npm tarballs and Debian packages."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from oasis.train import archives

FILES = {"./data/b.txt": b"second", "./data/a.txt": b"first", "./other": b"x"}


def tarball(mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def debian(data: bytes) -> bytes:
    """An `ar` archive as dpkg writes it; the member before the data has an odd size."""
    out = b"!<arch>\n"
    for name, body in (
        ("debian-binary", b"2.0"),
        ("control.tar.xz", b"12345"),
        ("data.tar.xz", data),
    ):
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode()
        out += body + b"\n" * (len(body) % 2)
    return out


@pytest.fixture(params=["a.whl", "a.tgz", "a.deb"])
def path(request, tmp_path):
    path = tmp_path / request.param
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in FILES.items():
                archive.writestr(name, content)
    else:
        path.write_bytes(tarball("w:gz") if path.suffix == ".tgz" else debian(tarball("w:xz")))
    return path


def test_members_and_contents(path):
    assert archives.members(path, "./data/") == ["./data/a.txt", "./data/b.txt"]
    assert archives.members(path) == sorted(FILES)
    assert archives.read(path, ["./data/b.txt", "./data/a.txt"]) == [b"second", b"first"]


def test_a_missing_file(path):
    with pytest.raises(KeyError, match="nothing"):
        archives.read(path, ["./data/a.txt", "nothing"])
