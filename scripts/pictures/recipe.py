"""What is made of a picture each time it is shown: a caption, perhaps another colour, a ground, its mirror picture, or a
neighbour. Whatever changes the picture is said in the caption, so that the words come to mean something of their own."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from scripts.pictures.colours import GROUNDS, HUES, recolour
from scripts.pictures.dataset import Pictures, Record
from scripts.pictures.entries import CLIP_ART
from scripts.pictures.words import article

_OPENINGS = ("a picture", "an image", "a drawing", "an icon")  # as people begin prompts; they say nothing


@dataclass(frozen=True, slots=True)
class Recipe:
    """Probabilities.

    Attributes:
        style: Of naming the style, and `clip_art` of naming that one: prompts that name none shall get the tidier emoji.
        colour: Of naming a picture's own main colour; `recolour` of turning it.
        ground, pair: Of a coloured ground, and of a second picture beside the first.
        flip: Of the mirror picture where it deserves the same captions.
        unnamed: Of no caption at all, which guidance needs.
        shift: Not a probability: how far a picture may move, as a share of its size.
    """

    style: float = 0.5
    clip_art: float = 0.9
    colour: float = 0.35
    recolour: float = 0.25
    ground: float = 0.12
    pair: float = 0.06
    flip: float = 0.5
    unnamed: float = 0.1
    shift: float = 0.04


@dataclass(frozen=True, slots=True)
class Dish:
    """One picture as it will be shown.

    Attributes:
        place: Of the picture.
        other: Of the one to the right of it, or -1.
        caption: "" for none.
        hue: To turn the main colour to, or -1.
        ground: RGB behind it.
    """

    place: int
    other: int
    caption: str
    hue: float
    ground: tuple[int, int, int]
    flip: bool


def prepare(pictures: Pictures, place: int, recipe: Recipe, chance: random.Random) -> Dish:
    """Decides everything about one showing of the picture at `place`."""
    record = pictures.records[place]
    flip = record.flip and chance.random() < recipe.flip
    if chance.random() < recipe.pair:
        other = chance.randrange(len(pictures.records))
        left, right = article(record.concept), article(pictures.records[other].concept)
        words = chance.choice((f"{left} and {right}", f"{left} next to {right}", f"{left} to the left of {right}"))
        return Dish(place, other, words, -1.0, (255, 255, 255), False)
    hue, colour = -1.0, record.colour if chance.random() < recipe.colour else ""
    if record.hue >= 0 and chance.random() < recipe.recolour:
        colour = chance.choice(tuple(HUES))
        hue = HUES[colour]
    named = chance.random() < (recipe.clip_art if record.style == CLIP_ART else recipe.style)
    caption = describe(record, colour, chance, style=named, changed=hue >= 0)
    ground = (255, 255, 255)
    if chance.random() < recipe.ground:
        name = chance.choice(tuple(GROUNDS))
        ground, caption = GROUNDS[name], f"{caption} on {article(name)} background"
    unnamed = chance.random() < recipe.unnamed
    return Dish(place, -1, "" if unnamed else caption, hue, ground, flip)


def describe(record: Record, colour: str, chance: random.Random, *, style: bool, changed: bool = False) -> str:
    """One of many captions of a picture.

    Args:
        colour: To be named, "" for none.
        changed: The picture no longer has its own colour: words for that are left out.
    """
    words = (record.concept, *record.keywords)
    if changed:
        words = tuple(filter(None, (" ".join(w for w in text.split() if w not in HUES) for text in words)))
    if not words:
        words = ("thing",)
    concept = words[0]
    name = f"{colour} {concept}" if colour and colour not in concept.split() else concept
    extra = [word for word in words[1:] if not changed or word not in HUES]
    kind = chance.randrange(6)
    if kind == 0 and len(extra) >= 2:
        chance.shuffle(extra)
        name = ", ".join([name, *extra[: chance.randint(1, 3)]])
        return f"{name}, {record.style}" if style else name
    if kind == 1 and extra and not colour:
        name = chance.choice(extra)
    shown = name if chance.random() < 0.25 else article(name)
    if not style:
        return f"{chance.choice(_OPENINGS)} of {shown}" if chance.random() < 0.15 else shown
    return chance.choice((f"{record.style} of {shown}", f"{shown}, {record.style}"))


def serve(pixels: torch.Tensor, hues: torch.Tensor, dishes: list[Dish], recipe: Recipe) -> torch.Tensor:
    """The pictures of `dishes`, [batch, 3, size, size] in [-1, 1].

    Args:
        pixels: uint8 [pictures, 4, size, size], RGBA.
        hues: [pictures], main hues.
    """
    device = pixels.device
    places = torch.tensor([dish.place for dish in dishes], device=device)
    shown = pixels[places].float() / 255
    flips = torch.tensor([dish.flip for dish in dishes], device=device)
    shown = torch.where(flips[:, None, None, None], shown.flip(3), shown)
    turned = [row for row, dish in enumerate(dishes) if dish.hue >= 0]
    if turned:
        rows = torch.tensor(turned, device=device)
        targets = torch.tensor([dishes[row].hue for row in turned], device=device)
        shown[rows, :3] = recolour(shown[rows, :3], hues[places[rows]], targets)
    pairs = [row for row, dish in enumerate(dishes) if dish.other >= 0]
    if pairs:
        rows = torch.tensor(pairs, device=device)
        right = pixels[torch.tensor([dishes[row].other for row in pairs], device=device)].float() / 255
        shown[rows] = side_by_side(shown[rows], right)
    shown = shifted(shown, recipe.shift)
    grounds = torch.tensor([dish.ground for dish in dishes], device=device)[:, :, None, None] / 255
    alpha = shown[:, 3:]
    return (shown[:, :3] * alpha + grounds * (1 - alpha)) * 2 - 1


def side_by_side(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Two RGBA pictures in one of the same size, each half as wide and half as high, at middle height."""
    halves = []
    for picture in (left, right):
        alpha = F.avg_pool2d(picture[:, 3:], 2)
        halves.append(torch.cat((F.avg_pool2d(picture[:, :3] * picture[:, 3:], 2) / alpha.clamp(min=1e-4), alpha), 1))
    joined = torch.cat(halves, 3)
    above = left.shape[2] // 4
    return F.pad(joined, (0, 0, above, left.shape[2] - joined.shape[2] - above))


def shifted(pictures: torch.Tensor, most: float) -> torch.Tensor:
    """All moved by one random way of at most `most` of their size; transparency moves in."""
    reach = int(most * pictures.shape[-1])
    if reach < 1:
        return pictures
    down, right = (int(way) for way in torch.randint(0, 2 * reach + 1, (2,)))
    size = pictures.shape[-1]
    return F.pad(pictures, (reach,) * 4)[:, :, down : down + size, right : right + size]
