"""Image files as a viewer shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def open_picture(path: str | Path) -> Image:
    """An image as 8-bit RGB: upright (EXIF orientation), 16-bit grey by its upper byte, what is
    transparent on white.

    Raises:
        OSError: not there, cut off, or no image.
    """
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):
            # Pillow's own conversion clips at 255, which leaves two levels. 65535 / 257 = 255.
            image = image.convert("I").point(lambda value: value / 257).convert("L")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
