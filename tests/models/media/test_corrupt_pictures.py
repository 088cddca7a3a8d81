"""A table of pictures that callers might send: each gives the right pixels, or an error that names field, limit and remedy."""

from __future__ import annotations

import io
import random
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from edgewise.core.errors import InvalidRequest
from edgewise.models.media.pictures import PictureLimits, read_rgb

RED, GREEN, WHITE = (255, 0, 0), (0, 128, 0), (255, 255, 255)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def saved(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def plain(mode: str, color: Any, form: str = "PNG", **options: Any) -> bytes:
    return saved(Image.new(mode, (8, 6), color), form, **options)


def chunk(kind: bytes, body: bytes, crc: int | None = None) -> bytes:
    crc = zlib.crc32(kind + body) if crc is None else crc
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)


def png(width: int, height: int, depth: int, color: int, raw: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def animated(form: str, **options: Any) -> bytes:
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue")]
    return saved(frames[0], form, save_all=True, append_images=frames[1:], duration=100, **options)


def palette_with_alpha() -> bytes:
    picture = Image.new("P", (8, 6), 0)
    picture.putpalette([255, 0, 0, 0, 128, 0])
    return saved(picture, transparency=0)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.new("RGB", (6, 8), RED), "JPEG", exif=exif, quality=100)


def zeros(pixels: int) -> bytes:
    side = int(pixels**0.5)
    return png(side, side, 1, 0, bytes((side // 8 + 2) * side))


NOISY_PNG = saved(Image.fromarray(NOISE))
NOISY_JPEG = saved(Image.fromarray(NOISE), "JPEG")
NOISY_WEBP = saved(Image.fromarray(NOISE), "WEBP")
GIF = animated("GIF")

RIGHT: dict[str, tuple[Callable[[], bytes], tuple[int, int, int]]] = {
    "plain PNG": (lambda: plain("RGB", RED), RED),
    "bilevel": (lambda: plain("1", 1), WHITE),
    "grey": (lambda: plain("L", 77), (77, 77, 77)),
    "grey of 16 bits": (lambda: saved(Image.fromarray(np.full((6, 8), 128 * 257, np.uint16))), (128, 128, 128)),
    "grey of 16 bits whose colour is transparent": (
        lambda: png(8, 6, 16, 0, (b"\0" + b"\x40\x00" * 8) * 6, chunk(b"tRNS", b"\x40\x00")),
        WHITE,
    ),
    "colour of 16 bits": (lambda: png(8, 6, 16, 2, (b"\0" + b"\xff\xff\0\0\0\0" * 8) * 6), RED),
    "grey with alpha": (lambda: plain("LA", (0, 0)), WHITE),
    "alpha, half": (lambda: plain("RGBA", (255, 0, 0, 51)), (255, 204, 204)),
    "palette": (lambda: saved(Image.new("RGB", (8, 6), RED).convert("P")), RED),
    "palette with alpha": (palette_with_alpha, WHITE),
    "a colour that is transparent": (lambda: plain("RGB", GREEN, transparency=GREEN), WHITE),
    "CMYK": (lambda: plain("CMYK", (0, 255, 255, 0), "JPEG", quality=100), (254, 0, 0)),
    "turned by EXIF": (turned, (254, 0, 0)),
    "progressive": (lambda: plain("RGB", RED, "JPEG", quality=100, progressive=True), (254, 0, 0)),
    "WebP with alpha": (lambda: plain("RGBA", (0, 0, 0, 0), "WEBP", lossless=True), WHITE),
    "animated GIF": (lambda: GIF, RED),
    "animated PNG": (lambda: animated("PNG"), RED),
    "animated WebP": (lambda: animated("WEBP", lossless=True), RED),
    "bytes behind the end": (lambda: plain("RGB", RED) + b"PK\3\4" * 50, RED),
}

WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "no picture that can be read .0 bytes.*PNG, JPEG, WebP or GIF"),
    "text": (lambda: b"Invoice No. 48213", "no picture that can be read"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "send PNG, JPEG, WebP or GIF"),
    "TIFF": (lambda: plain("RGB", RED, "TIFF"), "send PNG, JPEG, WebP or GIF"),
    "BMP": (lambda: plain("RGB", RED, "BMP"), "send PNG, JPEG, WebP or GIF"),
    "signature only": (lambda: b"\x89PNG\r\n\x1a\n", "no picture that can be read"),
    "cut PNG": (lambda: NOISY_PNG[: len(NOISY_PNG) // 2], "damaged or cut off"),
    "cut JPEG": (lambda: NOISY_JPEG[: len(NOISY_JPEG) // 2], "damaged or cut off"),
    "cut WebP": (lambda: NOISY_WEBP[: len(NOISY_WEBP) // 2], "'image' is"),
    "cut GIF": (lambda: GIF[:40], "'image' is"),
    "PNG called JPEG by its first bytes": (lambda: NOISY_JPEG[:2] + NOISY_PNG[2:], "'image' is"),
    "check sum of a chunk wrong": (
        lambda: NOISY_PNG.replace(struct.pack(">I", zlib.crc32(NOISY_PNG[12:29])), b"\0\0\0\0", 1),
        "'image' is",
    ),
    "compressed data spoilt": (lambda: NOISY_PNG[:60] + bytes(40) + NOISY_PNG[100:], "damaged or cut off"),
    "no width": (lambda: png(0, 6, 8, 2, b""), "'image' is"),
    "claims 4 gigapixels": (lambda: png(65_500, 65_500, 8, 2, b"\0"), "far more pixels: at most 32000000 are taken"),
    "100 megapixels in 12 kB": (
        lambda: zeros(100_000_000),
        "10000 x 10000 pixels: at most 32000000 are taken. Make it smaller",
    ),
    "a bomb of text": (
        lambda: png(8, 6, 8, 0, bytes(54), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20)))),
        "'image' is",
    ),
    "a frame that outgrows its GIF": (
        lambda: GIF.replace(b",\0\0\0\0\x08\0\x06\0", b",\0\0\0\0\xff\xff\xff\xff", 1),
        "far more pixels: at most 32000000",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_pixels(name: str) -> None:
    make, color = RIGHT[name]
    pixels = read_rgb(make(), "image")
    assert pixels.shape == (6, 8, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - color).max() <= 2


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_field_limit_and_remedy(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(InvalidRequest) as raised:
        read_rgb(make(), "image")
    assert raised.value.param == "image"
    assert raised.value.http_status == 400
    assert re.search(message, raised.value.message)
    assert re.search(r"send|Send|Make it smaller", raised.value.message)


def test_frames_are_asked_for_by_number() -> None:
    for number, color in enumerate([RED, GREEN, (0, 0, 255)]):
        assert np.abs(read_rgb(GIF, "image", frame=number).astype(int) - color).max() <= 2
    with pytest.raises(InvalidRequest, match="'frame' is 3: the picture in 'image' has 3 frames, counted from 0"):
        read_rgb(GIF, "image", frame=3)
    with pytest.raises(InvalidRequest, match="frames 0 to 255"):
        read_rgb(GIF, "image", frame=256)


def test_more_bytes_than_allowed_are_not_looked_at() -> None:
    with pytest.raises(InvalidRequest, match=r"'image' has 0.0 MiB: at most 0.0 MiB are taken. Send it smaller"):
        read_rgb(NOISY_PNG, "image", limits=PictureLimits(bytes=100))


def test_memory_stays_flat_over_the_whole_table() -> None:
    """Nothing is kept of a picture, and a bomb is refused before it is unpacked."""
    made = [make() for make, _ in (*RIGHT.values(), *WRONG.values())]
    process = psutil.Process()

    def read_all() -> None:
        for data in made:
            try:
                read_rgb(data, "image")
            except InvalidRequest:
                continue

    read_all()
    before = process.memory_info().rss
    tracemalloc.start()
    try:
        for _ in range(5):
            read_all()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
    assert peak < 16 << 20
    assert process.memory_info().rss - before < 16 << 20


def test_spoilt_files_give_pixels_or_an_error() -> None:
    """Bytes changed, left out and put in at random: nothing but `InvalidRequest` comes out of a decoder."""
    chance = random.Random(0)
    whole = [make() for make, _ in RIGHT.values()] + [NOISY_PNG, NOISY_JPEG, NOISY_WEBP]
    read = 0
    for _ in range(3000):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            at = chance.randrange(len(data))
            kind = chance.random()
            if kind < 0.7:
                data[min(at, chance.choice((64, at)))] = chance.choice((0, 255, chance.randrange(256)))
            elif kind < 0.85:
                data = data[: at + 1]
            else:
                data[at:at] = chance.randbytes(4)
        try:
            assert read_rgb(bytes(data), "image", frame=chance.choice((0, 0, 1, 5))).dtype == np.uint8
            read += 1
        except InvalidRequest:
            continue
    assert read > 100
