"""The training data: what is read from the packages, captions, colours, twins, the file and back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from scripts.pictures.build import encode, record, without_twins
from scripts.pictures.colours import HUES, main_colour, recolour
from scripts.pictures.dataset import Pictures, Record, read_pictures, write_pictures
from scripts.pictures.entries import Entry, read_all
from scripts.pictures.recipe import Recipe, describe, prepare, serve
from scripts.pictures.render import Pixels, fit
from scripts.pictures.words import article, clean, keywords, may_flip, readable

VOCABULARY = frozenset(
    ["red", "apple", "tree", "big", "green", "house", "fruit", "dog", "animal", "a", "of", "the", "pen", "animals"]
)


def disc(colour: tuple[int, int, int], size: int = 32) -> Pixels:
    image = Image.new("RGBA", (size, size), (0, 0, 0, 0))
    ImageDraw.Draw(image).ellipse((3, 3, size - 4, size - 4), fill=(*colour, 255))
    return np.array(image)


def apple(**changes: object) -> Record:
    values: dict[str, object] = {
        "identity": "noto/red-apple",
        "style": "noto emoji",
        "concept": "red apple",
        "keywords": ("fruit", "red", "green tree"),
        "colour": "red",
        "hue": 0.0,
        "flip": True,
        "held_out": False,
    }
    return Record(**(values | changes))  # type: ignore[arg-type]


def test_only_english_that_says_something_is_readable() -> None:
    assert readable("red apple", VOCABULARY)
    for text in ("", "lucertola", "apple di house", "the of a", "red " * 7, "icon"):
        assert not readable(text, VOCABULARY), text
    assert readable("lucertola")
    assert clean("Apple's  Tree_02.svg") == "apple tree svg"
    assert keywords(["Fruit", "fruit", "mela", "icon", "red apple"], "red apple", VOCABULARY) == ("fruit",)
    assert [article(noun) for noun in ("apple", "dog", "the sun", "grapes", "glass")] == [
        "an apple",
        "a dog",
        "the sun",
        "grapes",
        "a glass",
    ]
    assert may_flip(["red apple"])
    assert not may_flip(["red apple", "letter a"])


def test_entries_of_both_kinds_of_package(tmp_path: Path) -> None:
    for style in ("noto", "fluent-emoji", "fluent-emoji-flat"):
        folder = tmp_path / style / "package"
        folder.mkdir(parents=True)
        names = ("red-apple", "flag-for-france", "waving-hand-dark-skin-tone", "keycap-1", "gone")
        icons = {name: {"body": f"<path id='{name}'/>", "hidden": name == "gone"} for name in names}
        (folder / "icons.json").write_text(json.dumps({"icons": icons, "width": 32, "height": 32}))
        (folder / "chars.json").write_text(json.dumps({"1f34e": "red-apple"}))
    english = tmp_path / "emojibase-data/package/en"
    english.mkdir(parents=True)
    (english / "data.json").write_text(
        json.dumps([{"hexcode": "1F34E", "label": "red apple", "tags": ["fruit", "red"]}])
    )
    clip_art = tmp_path / "openclipart-svg/usr/share/openclipart/svg"
    svg = "<svg><dc:title>{}</dc:title><rdf:li>dog</rdf:li><rdf:li>animal</rdf:li></svg>"
    for place, title in (("animals/dog.svg", "Cane"), ("logos/a.svg", "dog"), ("food/mela.svg", "big apple")):
        (clip_art / place).parent.mkdir(parents=True, exist_ok=True)
        (clip_art / place).write_text(svg.format(title))
    entries = read_all(tmp_path, VOCABULARY)
    assert [(entry.identity, entry.concept, entry.keywords) for entry in entries] == [
        ("noto/red-apple", "red apple", ("fruit", "red")),
        ("fluent-emoji/red-apple", "red apple", ("fruit", "red")),
        ("fluent-emoji-flat/red-apple", "red apple", ("fruit", "red")),
        ("openclipart/animals/dog.svg", "dog", ("animal", "animals")),
        ("openclipart/food/mela.svg", "big apple", ("dog", "animal")),
    ]
    assert entries[0].svg.startswith("<svg ")
    assert 'viewBox="0 0 32 32"' in entries[0].svg


def test_a_drawing_is_cut_and_centred_and_blank_ones_are_dropped() -> None:
    image = Image.new("RGBA", (200, 100), (0, 0, 0, 0))
    ImageDraw.Draw(image).rectangle((10, 20, 89, 59), fill=(200, 30, 30, 255))
    fitted = fit(image, 64)
    assert fitted is not None
    rows, columns = np.flatnonzero((fitted[..., 3] > 128).any(1)), np.flatnonzero((fitted[..., 3] > 128).any(0))
    assert 55 <= columns[-1] - columns[0] + 1 <= 62
    assert abs((rows[0] + rows[-1]) - 63) <= 2
    assert fit(Image.new("RGBA", (50, 50), (0, 0, 0, 0)), 64) is None
    assert fit(Image.new("RGBA", (50, 50), (255, 255, 255, 255)), 64) is None


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((220, 30, 30), "red"),
        ((240, 140, 20), "orange"),
        ((30, 160, 60), "green"),
        ((40, 90, 220), "blue"),
        ((140, 50, 200), "purple"),
        ((120, 70, 30), "brown"),
        ((10, 10, 12), "black"),
        ((130, 130, 130), "gray"),
    ],
)
def test_main_colours_have_names(rgb: tuple[int, int, int], name: str) -> None:
    found, hue = main_colour(disc(rgb))
    assert found == name
    assert (hue >= 0) == (name in HUES)


def test_recolouring_turns_the_main_colour_only() -> None:
    picture = disc((220, 30, 30))
    picture[10:20, 10:20, :3] = (30, 160, 60)
    _, hue = main_colour(picture)
    rgb = torch.from_numpy(picture[..., :3]).permute(2, 0, 1)[None].float() / 255
    turned = recolour(rgb, torch.tensor([hue]), torch.tensor([HUES["blue"]]))
    changed = picture.copy()
    changed[..., :3] = (turned[0].permute(1, 2, 0) * 255).round().byte().numpy()
    assert main_colour(changed)[0] == "blue"
    assert np.abs(changed[12:18, 12:18].astype(int) - picture[12:18, 12:18].astype(int)).max() <= 1


def test_twins_of_one_style_go() -> None:
    entries = [Entry(str(i), style, "disc", (), "") for i, style in enumerate(("a", "a", "b", "a"))]
    pictures = [disc((200, 20, 20)), disc((200, 20, 22)), disc((200, 20, 20)), disc((20, 20, 200))]
    assert without_twins(entries, pictures) == [0, 2, 3]


def test_the_file_holds_what_was_put_in(tmp_path: Path) -> None:
    drawn = [disc((220, 30, 30), 128), disc((30, 160, 60), 128)]
    entries = [Entry("noto/a", "noto emoji", "apple", ("fruit",), ""), Entry("x/b", "clip art", "letter tree", (), "")]
    records = [record(entry, picture) for entry, picture in zip(entries, drawn, strict=True)]
    as_objects = [{name: getattr(item, name) for name in Record.__dataclass_fields__} for item in records]
    write_pictures(tmp_path / "pictures.npz", as_objects, [encode(picture) for picture in drawn])
    read = read_pictures(tmp_path / "pictures.npz", 128)
    assert read.records == records
    assert [item.flip for item in read.records] == [True, False]
    assert read.pixels.shape == (2, 4, 128, 128)
    solid = read.pixels[0, :, 64, 64].tolist()
    assert np.abs(np.array(solid) - (220, 30, 30, 255)).max() < 12
    only = read_pictures(tmp_path / "pictures.npz", 64, ["clip art"])
    assert [item.concept for item in only.records] == ["letter tree"]
    assert only.pixels.shape == (1, 4, 64, 64)


def test_captions_name_the_new_colour_and_no_old_one() -> None:
    chance = random.Random(0)
    for _ in range(300):
        caption = describe(apple(), "blue", chance, style=chance.random() < 0.5, changed=True)
        assert "red" not in caption.split()
        assert "blue apple" in caption
    for _ in range(300):
        caption = describe(apple(), "", chance, style=True)
        assert "noto emoji" in caption
    bare = describe(apple(concept="red", keywords=()), "blue", chance, style=False, changed=True)
    assert bare.endswith("blue thing")


def test_clip_art_is_named_more_often_than_emoji(tmp_path: Path) -> None:
    records = [apple(), apple(style="clip art")]
    pictures = Pictures(records, torch.zeros(2, 4, 8, 8, dtype=torch.uint8))
    chance, recipe = random.Random(1), Recipe(pair=0, unnamed=0, style=0.2, clip_art=0.9)
    counts = [
        sum(r.style in prepare(pictures, i, recipe, chance).caption for _ in range(300)) for i, r in enumerate(records)
    ]
    assert 30 < counts[0] < 90
    assert 240 < counts[1] < 295


def test_what_is_shown_is_what_the_caption_says(tmp_path: Path) -> None:
    write_pictures(
        tmp_path / "p.npz",
        [{name: getattr(apple(), name) for name in Record.__dataclass_fields__}] * 2,
        [encode(disc((220, 30, 30), 64))] * 2,
    )
    pictures = read_pictures(tmp_path / "p.npz", 64)
    recipe, chance = Recipe(recolour=0.5, ground=0.5, pair=0.2, unnamed=0.2, shift=0), random.Random(2)
    dishes = [prepare(pictures, place % 2, recipe, chance) for place in range(200)]
    shown = serve(pictures.pixels, torch.tensor([0.0, 0.0]), dishes, recipe)
    assert shown.shape == (200, 3, 64, 64)
    assert shown.min() >= -1.001
    assert shown.max() <= 1.001
    pairs = [row for row, dish in enumerate(dishes) if dish.other >= 0]
    assert pairs
    for row, dish in enumerate(dishes):
        middle = shown[row, :, 32, 32] * 0.5 + 0.5
        corner = (shown[row, :, 0, 0] * 127.5 + 127.5).round().tolist()
        assert np.abs(np.array(corner) - dish.ground).max() <= 1
        if " background" in dish.caption:
            assert dish.ground != (255, 255, 255)
        if row in pairs:
            assert middle.min() > 0.9  # between the two
        elif "blue apple" in dish.caption:
            assert middle[2] > middle[0] + 0.3
