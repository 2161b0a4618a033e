"""Reading files out of wheels, npm tarballs and Debian packages."""

from __future__ import annotations

import io
import struct
import tarfile
import tracemalloc
import zipfile

import pytest

from oasis.lab.data import archives

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


def test_a_file_that_unpacks_to_more_than_asked_for_is_refused(path):
    assert archives.read(path, ["./data/b.txt"], most=6) == [b"second"]
    with pytest.raises(
        ValueError, match=f"{path.name}: ./data/b.txt has 6 bytes, expected at most 5"
    ):
        archives.read(path, ["./data/b.txt"], most=5)
    # Nor may several together.
    with pytest.raises(ValueError, match="has 5 bytes, expected at most 4|has 6 bytes, expected"):
        archives.read(path, ["./data/b.txt", "./data/a.txt"], most=10)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path):
    zeros = bytes(64 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", zeros)
    # A header that says less than there is does not get more unpacked either.
    content = bytearray((tmp_path / "bomb.whl").read_bytes())
    at = content.rindex(struct.pack("<I", len(zeros)))  # in the directory at the end
    content[at : at + 4] = struct.pack("<I", 100)
    (tmp_path / "lie.whl").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match="zeros has 67,108,864 bytes, expected at most 1,000"):
        archives.read(tmp_path / "bomb.whl", ["zeros"], most=1000)
    with pytest.raises(zipfile.BadZipFile):
        archives.read(tmp_path / "lie.whl", ["zeros"])
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".tgz", ".deb"])
def test_a_negative_size_in_a_tar_header_is_refused(tmp_path, suffix):
    member = tarfile.TarInfo("a")
    header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = (-512).to_bytes(12, "big", signed=True)  # base 256, as GNU tar writes it
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = bytes(header) + bytes(1024)
    path = tmp_path / f"negative{suffix}"
    path.write_bytes(content if suffix == ".tgz" else debian(content))
    for act in (lambda: archives.members(path), lambda: archives.read(path, ["b"])):
        with pytest.raises((ValueError, tarfile.ReadError), match="size of -512|invalid"):
            act()


@pytest.mark.parametrize("size", ["-60", "-1", "x", "", "99999999", "+5", " "])
def test_a_size_that_does_not_fit_in_a_debian_header_is_refused(tmp_path, size):
    path = tmp_path / "wrong.deb"
    good = debian(tarball("w:xz"))
    at = len(b"!<arch>\n") + 48
    path.write_bytes(good[:at] + f"{size:<10}".encode() + good[at + 10 :])
    with pytest.raises(ValueError, match="wrong.deb: the member at byte 8 has no size that fits"):
        archives.members(path)


def test_a_debian_package_that_ends_early_is_refused(tmp_path):
    path = tmp_path / "torn.deb"
    whole = debian(tarball("w:xz"))
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="torn.deb: "):
            archives.members(path)


def test_what_is_no_file_is_not_read(tmp_path):
    path = tmp_path / "links.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            member = tarfile.TarInfo(f"m{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert archives.members(path) == []
    for name in ("m2", "m5"):
        with pytest.raises(ValueError, match=f"links.tgz: {name} is not a file"):
            archives.read(path, [name])
