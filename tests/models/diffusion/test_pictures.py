"""Pictures from callers: upright as their orientation says, whatever their metadata hold."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from edgewise.models.diffusion.pictures import read_mask, read_pixels
from edgewise.models.media.pictures import open_picture

UPRIGHT = np.array([[0, 80, 160], [40, 120, 240]], np.uint8)
STORED = {  # orientation (EXIF 2.32, 4.6.4): how the pixels lie in the file
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.T,
    6: np.rot90(UPRIGHT),
    7: np.rot90(UPRIGHT, 2).T,
    8: np.rot90(UPRIGHT, -1),
}


def stored(pixels: np.ndarray, exif: bytes | Image.Exif, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, form, exif=exif)
    return out.getvalue()


@pytest.mark.parametrize("orientation", STORED)
def test_pictures_and_masks_are_read_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = stored(STORED[orientation], exif)
    assert np.array_equal(np.asarray(open_picture(data, "image")), UPRIGHT)
    assert np.array_equal(read_pixels(data, 3, 2)[:, :, 0], UPRIGHT)
    assert np.array_equal(read_mask(data, 3, 2), np.where(UPRIGHT >= 128, 255, 0))


def test_metadata_that_cannot_be_read_say_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a" * 40
    exif.get_ifd(0x8769)[0x9003] = "2026:01:01 00:00:00"
    whole, chance = exif.tobytes(), random.Random(0)
    for number in range(300):
        block = bytearray(whole)
        for _ in range(1 + number % 5):
            block[chance.randrange(6, len(block))] = chance.randrange(256)
        data = stored(UPRIGHT, bytes(block[: chance.randrange(7, len(block) + 1)]))
        assert sorted(open_picture(data, "image").size) == [2, 3]
