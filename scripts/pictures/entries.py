"""Reads the packages: for every usable drawing its SVG, what is to be seen in it, and words that go with it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.pictures.words import clean, keywords, readable

STYLES: Final = {"noto": "noto emoji", "fluent-emoji": "3d emoji", "fluent-emoji-flat": "flat emoji"}
CLIP_ART: Final = "clip art"
MAX_SVG: Final = 700_000  # bytes; larger ones hold photographs or take long to draw

_TONE: Final = re.compile(r"-(light|medium|dark)(-skin-tone)?$|skin-tone|-(light|medium|dark)-|-(light|dark)-medium")
_FLAG: Final = re.compile(r"^flag(-for|s?$|-)")
_SIGNS: Final = re.compile(r"\b(keycap|button|squared?|input|japanese|ideograph|zodiac|hangzhou|regional)\b")
_LEFT_OUT: Final = (
    "signs_and_symbols",
    "computer/icons",
    "computer/buttons",
    "unsorted/duplicates",
    "buttons",
    "logos",
    "geography",
    "special",
    "shapes/jigsaw",
    "shapes/arrows",
    "transportation/aiga",
    "recreation/games/chess",
    "education/stuffs",
)
"""Folders of clip art without things that one would ask for by name."""

_MOST_ALIKE: Final = 12  # drawings of one title


@dataclass(frozen=True, slots=True)
class Entry:
    """A drawing. `identity` names set and file; `style` is the word for the set; `concept` says what is to be seen."""

    identity: str
    style: str
    concept: str
    keywords: tuple[str, ...]
    svg: str


def read_all(cache: Path, vocabulary: Collection[str]) -> list[Entry]:
    """All usable drawings in `cache`, in an order that depends on nothing but the packages."""
    names = _emoji_names(cache)
    entries = [entry for style in STYLES for entry in _emoji(cache / style / "package", style, names)]
    return entries + list(_clip_art(cache / "openclipart-svg/usr/share/openclipart/svg", vocabulary))


def _emoji_names(cache: Path) -> dict[str, tuple[str, list[str]]]:
    """Code points -> label and tags."""
    records = json.loads((cache / "emojibase-data/package/en/data.json").read_text(encoding="utf-8"))
    return {_codes(item["hexcode"]): (item["label"], item.get("tags", [])) for item in records}


def _codes(text: str) -> str:
    return text.lower().replace("-fe0f", "")


def _emoji(folder: Path, prefix: str, names: dict[str, tuple[str, list[str]]]) -> Iterator[Entry]:
    icons: dict[str, Any] = json.loads((folder / "icons.json").read_text(encoding="utf-8"))
    characters = json.loads((folder / "chars.json").read_text(encoding="utf-8"))
    codes: dict[str, str] = {}
    for character, name in characters.items():
        codes.setdefault(name, _codes(character))
    for name, icon in icons["icons"].items():
        code = codes.get(name, "")
        if icon.get("hidden") or _TONE.search(name) or _FLAG.search(name) or code.startswith("1f1e"):
            continue
        label, tags = names.get(code, ("", []))
        concept = next((text for text in (clean(name.replace("-", " ")), clean(label)) if readable(text)), "")
        if not concept or _SIGNS.search(concept):
            continue
        width, height = icon.get("width", icons.get("width", 16)), icon.get("height", icons.get("height", 16))
        yield Entry(
            identity=f"{prefix}/{name}",
            style=STYLES[prefix],
            concept=concept,
            keywords=keywords([label, *tags], concept),
            svg=f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">{icon["body"]}</svg>',
        )


def _clip_art(root: Path, vocabulary: Collection[str]) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    for path in sorted(root.rglob("*.svg")):
        place = path.relative_to(root).as_posix()
        if place.startswith(_LEFT_OUT) or "flag" in place or path.stat().st_size > MAX_SVG:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        title = re.search(r"<dc:title[^>]*>([^<]+)", text)
        found = re.findall(r"<rdf:li[^>]*>([^<]+)</rdf:li>", text)
        folders = [clean(part) for part in reversed(place.split("/")[:-1])]
        stem = re.sub(r"_[a-z.]*_?\d*$", "", path.stem)
        choices = [clean(title[1]) if title else "", clean(stem), *map(clean, found)]
        concept = next((choice for choice in choices if readable(choice, vocabulary)), "")
        seen[concept] = seen.get(concept, 0) + 1
        if concept and seen[concept] <= _MOST_ALIKE:
            words = keywords([*found, *folders], concept, vocabulary)
            yield Entry(f"openclipart/{place}", CLIP_ART, concept, words, text)
