"""The models of the catalog with their real weights: labels of photos, and text that was drawn."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from edgewise.models.store import Store
from edgewise.models.vision.encoders import PictureEncoder
from edgewise.models.vision.load_labels import load_labeller
from edgewise.models.vision.load_ocr import load_reader
from edgewise.serving.encoders import ladder_options
from tests.e2e.vision import INVOICE, invoice, photo, png, vision_store


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> PictureEncoder:
    store = Store(vision_store())
    options = dict(ladder_options(store, store.manifest("efficientnet-lite0")))
    options["store"] = str(tmp_path_factory.mktemp("ladders"))
    return load_labeller(store.resolve("efficientnet-lite0", "vision"), 1, **options)[0]


@pytest.fixture(scope="module")
def reader() -> PictureEncoder:
    return load_reader(Store(vision_store()).resolve("rapidocr", "ocr"), 1)[0]


def seen(encoder: PictureEncoder, data: bytes, **options: Any) -> Any:
    ((result, _),) = encoder.compute([encoder.check(data, options)])
    return result


def text(reader: PictureEncoder, picture: Image.Image) -> list[str]:
    return [line["text"] for line in seen(reader, png(picture))["lines"]]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("chelsea.png", "tiger cat"),
        ("coffee.png", "espresso"),
        ("camera.png", "tripod"),
        ("motorcycle_left.png", "moped"),
        ("rocket.jpg", "missile"),
    ],
)
def test_photos_get_their_labels(labeller: PictureEncoder, name: str, label: str) -> None:
    result = seen(labeller, photo(name), top=3)
    assert result["labels"][0]["name"] == label
    assert len(result["labels"]) == 3
    assert (result["width"], result["height"]) == Image.open(io.BytesIO(photo(name))).size


@pytest.mark.parametrize("angle", [0, 7, 180])
def test_an_invoice_is_read_also_askew_and_upside_down(reader: PictureEncoder, angle: int) -> None:
    page = invoice().rotate(angle, fillcolor="white", expand=True)
    lines = text(reader, page)
    assert sorted(lines) == sorted(INVOICE)
    if angle != 180:
        assert lines == list(INVOICE)


def test_long_lines_are_not_taken_to_stand_on_their_heads(reader: PictureEncoder) -> None:
    line = "the quick brown fox jumps over the lazy dog and so on and on and on to the very end of it"
    page = Image.new("RGB", (1400, 200), "white")
    ImageDraw.Draw(page).text((20, 80), line, font=ImageFont.load_default(30), fill="black")
    assert text(reader, page) == [line]


def test_corners_are_in_pixels_of_the_picture_that_was_sent(reader: PictureEncoder) -> None:
    page = Image.new("RGB", (4000, 3000), "white")  # more than is looked at
    ImageDraw.Draw(page).text((1000, 2000), "Label 7731", font=ImageFont.load_default(120), fill="black")
    (line,) = seen(reader, png(page))["lines"]
    assert line["text"] == "Label 7731"
    (left, top), _, (right, bottom), _ = line["corners"]
    assert 950 < left < 1010
    assert 1950 < top < 2070
    assert 1500 < right < 1900
    assert 2070 < bottom < 2200


def test_pages_without_text_have_none(reader: PictureEncoder) -> None:
    assert text(reader, Image.new("RGB", (30, 30), "white")) == []
    assert text(reader, Image.new("RGB", (1500, 12), "black")) == []
    assert text(reader, Image.new("RGB", (1, 1), "white")) == []
