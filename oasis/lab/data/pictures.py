"""Images as a viewer shows them, from a file or from its content."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from oasis.lab.data.json_files import kind_of

if TYPE_CHECKING:
    from PIL.Image import Image

URI = "data:"


def open_picture(source: str | Path | BinaryIO) -> Image:
    """An image as 8-bit RGB: upright (EXIF orientation), 16-bit grey by its upper byte, what is
    transparent on white.

    Raises:
        OSError: not there, cut off, larger than Pillow takes, or no image.
    """
    from PIL import Image

    try:
        with Image.open(source) as opened:
            return _as_seen(opened)
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:  # damaged, too large
        raise OSError(str(error)) from error


def _as_seen(opened: Image) -> Image:
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255, which leaves two levels. 65535 / 257 = 255.
        image = image.convert("I").point(lambda value: value / 257).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


@dataclass(frozen=True)
class Picture:
    """An image where it lies: a file at `path`, or its content, which `path` then only names."""

    path: str | None
    data: bytes | None = None

    def read(self) -> bytes:
        """The content of the file. OSError where there is none."""
        return Path(self.path or "").read_bytes() if self.data is None else self.data

    def __str__(self) -> str:
        return self.path or f"of {len(self.data or b'')} bytes"


def open_all(pictures: tuple[Picture, ...], where: str) -> tuple[list[Image], list[bytes]]:
    """The images and the contents of their files. ValueError or FileNotFoundError beginning with
    `where` and naming the one that cannot be read.
    """
    images, contents = [], []
    for picture in pictures:
        try:
            contents.append(picture.read())
            images.append(open_picture(io.BytesIO(contents[-1])))
        except OSError as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            reason = error.strerror or re.sub(r" <_io\.BytesIO[^>]*>", "", str(error))
            raise kind(f"{where}: the image {picture} cannot be read ({reason})") from error
    return images, contents


def pictures_of(value: Any, folder: Path, where: str) -> tuple[Picture, ...]:
    """The images that a field of a row names: one or a list of paths (relative to `folder`), data
    URIs, contents, or objects with "path" and "bytes" as `datasets` has them. None and "" are none.

    Raises:
        ValueError: anything else, in a message beginning with `where`.
    """
    values = value if isinstance(value, list) else [value]
    return tuple(_picture(one, folder, where) for one in values if one is not None and one != "")


def _picture(value: Any, folder: Path, where: str) -> Picture:
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        if data is not None and (path is None or isinstance(path, str)):
            return Picture(path, _content(data, where))
        value = path
    if isinstance(value, bytes) or (isinstance(value, str) and value.startswith(URI)):
        return Picture(None, _content(value, where))
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{where}: got {kind_of(value)}, expected an image: a path, its bytes, or an object "
            'with "path" or "bytes"'
        )
    return Picture(str(folder / value))


def _content(value: Any, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    head, comma, encoded = value.partition(",") if isinstance(value, str) else ("", "", "")
    try:
        if not (comma and head.startswith(URI) and head.endswith(";base64")):
            raise ValueError("no data URI")
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"{where}: got {kind_of(value)}, expected bytes or a data URI with base64 ({error})"
        ) from None


def data_uri(content: bytes) -> str:
    """Bytes as a text that `pictures_of` reads."""
    return f"{URI}application/octet-stream;base64,{base64.b64encode(content).decode('ascii')}"
