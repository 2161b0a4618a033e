"""Files inside what package registries serve: wheels, npm tarballs, Debian packages."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def members(path: Path, prefix: str = "") -> list[str]:
    """Names of the files under `prefix` inside the archive, sorted."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    else:
        with _tar(path) as archive:
            names = [member.name for member in archive if member.isfile()]
    return sorted(name for name in names if name.startswith(prefix))


def read(path: Path, wanted: list[str]) -> list[bytes]:
    """Contents of the files `wanted`, in that order. KeyError where one is missing."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in wanted]
    missing = set(wanted)
    contents: dict[str, bytes] = {}
    with _tar(path) as archive:
        # In one pass: a compressed tarball cannot jump.
        for member in archive:
            if member.name in missing:
                contents[member.name] = archive.extractfile(member).read()
                missing.remove(member.name)
            if not missing:
                break
    if missing:
        raise KeyError(f"{path.name} has no {sorted(missing)[0]}")
    return [contents[name] for name in wanted]


def _tar(path: Path) -> tarfile.TarFile:
    if path.suffix == ".deb":
        return tarfile.open(fileobj=io.BytesIO(_debian_data(path.read_bytes())))
    return tarfile.open(path)


def _debian_data(content: bytes) -> bytes:
    """The member `data.tar.*` of a Debian package, which is an `ar` archive: 60-byte headers with
    the name in the first 16 bytes and the size in bytes 48 to 58, bodies padded to even length.
    """
    at = len(b"!<arch>\n")
    while at < len(content):
        header = content[at : at + 60]
        size = int(header[48:58])
        if header.startswith(b"data.tar"):
            return content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise ValueError("the Debian package has no data.tar")
