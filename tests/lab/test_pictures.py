"""Images are decoded as viewers show them; what cannot be is named with file and entry."""

import json

import numpy as np
import pytest
from PIL import Image

from oasis.lab.data.llava import LlavaCollator, read_llava
from oasis.lab.data.pictures import open_picture


def test_16_bit_grey_keeps_its_shades(tmp_path):
    values = np.linspace(0, 65535, 80 * 40).astype(np.uint16).reshape(40, 80)
    Image.fromarray(values).save(tmp_path / "grey.png")
    assert Image.open(tmp_path / "grey.png").mode == "I;16"
    found = np.asarray(open_picture(tmp_path / "grey.png"))
    assert found.shape == (40, 80, 3) and found.dtype == np.uint8
    assert np.abs(found[..., 0] - values / 257).max() <= 1


@pytest.mark.parametrize(
    ("orientation", "corner"),  # where a viewer shows what is stored at the upper left
    [(1, (0, 0)), (2, (0, -1)), (3, (-1, -1)), (4, (-1, 0)), (6, (0, -1)), (8, (-1, 0))],
)
def test_photographs_are_upright(tmp_path, orientation, corner):
    stored = np.zeros((40, 80, 3), np.uint8)
    stored[:10, :10] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "p.jpg", exif=exif, quality=95)
    found = np.asarray(open_picture(tmp_path / "p.jpg"))
    assert found.shape[:2] == ((80, 40) if orientation in (6, 8) else (40, 80))
    assert found[corner][0] > 200 and found[corner][2] < 60


def test_what_is_transparent_is_white(tmp_path):
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.save(tmp_path / "t.png")
    assert [*np.asarray(open_picture(tmp_path / "t.png"))[0].tolist()] == [
        *([255, 0, 0], [255, 255, 255])
    ]


def test_a_truncated_image_is_named_with_file_and_entry(tmp_path):
    Image.effect_noise((60, 60), 50).save(tmp_path / "cut.jpg")
    content = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    turns = [{"from": "human", "value": "<image>\na"}, {"from": "gpt", "value": "b"}]
    entries = [{"conversations": [{"from": "human", "value": "a"}, turns[1]]}]
    entries += [{"image": "cut.jpg", "conversations": turns}]
    (tmp_path / "d.json").write_text(json.dumps(entries))
    talks = read_llava(tmp_path / "d.json")
    with pytest.raises(ValueError, match=r"d.json, entry 1: the image .*cut.jpg cannot be read"):
        LlavaCollator(processor=None)(talks[1:])
