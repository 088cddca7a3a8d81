"""Text in pictures with PaddleOCR's three networks in ONNX, as RapidOCR packages them: find lines, turn them, read them.

Sizes, thresholds and order of channels are those of RapidOCR 3.10 (Apache-2.0); the steps around the networks are our own, in
NumPy and Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image

from edgewise.models.vision.boxes import Box, find_boxes, reading_order
from edgewise.models.vision.network import Floats, Network

DETECTOR: Final = "detect.onnx"
DIRECTION: Final = "direction.onnx"
RECOGNIZER: Final = "recognize.onnx"

LONGEST_SIDE: Final = 2000
"""Pixels; larger pictures are made smaller first."""
_SHORTEST_SIDE: Final = 736
_LARGEST_MAP: Final = 2_000_000  # pixels that the detector is given
_GRID: Final = 32
_TEXT_HEIGHT: Final = 48
_DIRECTION_WIDTH: Final = 192
_MAX_TEXT_WIDTH: Final = 3200
_BATCH: Final = 6
_UPSIDE_DOWN: Final = 0.9
_MIN_SCORE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text.

    Attributes:
        text: What it says.
        score: Mean probability of its characters, 0 to 1.
        corners: x, y in pixels of the picture: top left, top right, bottom right, bottom left of the text.
    """

    text: str
    score: float
    corners: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Reader:
    """The three networks. `characters`: what each class of the recognizer stands for, without the blank that is class 0."""

    detect: Network
    direction: Network
    recognize: Network
    characters: Sequence[str]

    def read(self, picture: Image.Image, ratio: float = 1.0) -> list[Line]:
        """The lines of an RGB picture in reading order.

        Args:
            picture: No side longer than `LONGEST_SIDE` (`scaled_down`).
            ratio: By what the caller's picture was multiplied to give it; corners are in pixels of the caller's.
        """
        boxes = self._find(picture)
        crops = [_cut_out(picture, box) for box in boxes]
        turned = {
            index: crop.transpose(Image.Transpose.ROTATE_180)
            for index, crop in enumerate(crops)
            if self._may_stand_on_its_head(crop)
        }
        read = self._read([*crops, *turned.values()])
        for index, other in zip(turned, read[len(crops) :], strict=True):
            read[index] = max(read[index], other, key=lambda line: line[1])
        lines = [
            Line(text, score, tuple((round(x / ratio, 1), round(y / ratio, 1)) for x, y in box.corners.tolist()))
            for box, (text, score) in zip(boxes, read, strict=False)
        ]
        return [line for line in lines if line.text.strip() and line.score >= _MIN_SCORE]

    def _find(self, picture: Image.Image) -> list[Box]:
        width, height = picture.size
        size = _map_size(width, height)
        probability = self.detect(_batch([picture.resize(size, Image.Resampling.BILINEAR)]))[0, 0]
        ratio = np.array([width / size[0], height / size[1]])
        limits = np.array([width, height], dtype=np.float64)
        boxes = [Box(np.clip(box.corners * ratio, 0, limits), box.score) for box in find_boxes(probability)]
        return reading_order([box for box in boxes if min(_size(box)) > _GRID / 8])

    def _may_stand_on_its_head(self, crop: Image.Image) -> bool:
        """By a line's beginning: squeezed into the network's width, a long one is mistaken. Such lines are read both ways."""
        beginning = crop.crop(
            (0, 0, min(crop.width, round(crop.height * _DIRECTION_WIDTH / _TEXT_HEIGHT)), crop.height)
        )
        return float(self.direction(_fitted(beginning, _DIRECTION_WIDTH)[np.newaxis])[0, 1]) > _UPSIDE_DOWN

    def _read(self, crops: Sequence[Image.Image]) -> list[tuple[str, float]]:
        """Lines of like proportions are read together: the shorter ones are padded to the longest."""
        found: list[tuple[str, float]] = [("", 0.0)] * len(crops)
        by_shape = sorted(range(len(crops)), key=lambda index: crops[index].width / crops[index].height)
        for group in (by_shape[start : start + _BATCH] for start in range(0, len(by_shape), _BATCH)):
            widest = max(320, *(_text_width(crops[index]) for index in group))
            scores = self.recognize(np.stack([_fitted(crops[index], widest) for index in group]))
            for index, line in zip(group, self._texts(scores), strict=True):
                found[index] = line
        return found

    def _texts(self, scores: Floats) -> Iterator[tuple[str, float]]:
        """Greedy CTC (Graves et al. 2006): the likeliest class of each column, repetitions and blanks left out."""
        for best, probability in zip(scores.argmax(axis=2), scores.max(axis=2), strict=True):
            kept = best != 0
            kept[1:] &= best[1:] != best[:-1]
            text = "".join(self.characters[int(label) - 1] for label in best[kept])
            yield text, float(probability[kept].mean()) if kept.any() else 0.0


def character_list(metadata: Mapping[str, Any]) -> list[str]:
    """Of a recognizer's metadata: one a line, and the space after them."""
    return [*str(metadata["character"]).split("\n"), " "]


def scaled_down(picture: Image.Image) -> Image.Image:
    """So that no side is longer than `LONGEST_SIDE`."""
    ratio = LONGEST_SIDE / max(picture.size)
    if ratio >= 1.0:
        return picture
    width, height = (max(1, round(side * ratio)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _map_size(width: int, height: int) -> tuple[int, int]:
    ratio = min(max(1.0, _SHORTEST_SIDE / min(width, height)), math.sqrt(_LARGEST_MAP / (width * height)))
    wide, high = (max(_GRID, round(side * ratio / _GRID) * _GRID) for side in (width, height))
    return wide, high


def _size(box: Box) -> tuple[int, int]:
    top_left, top_right, bottom_right, bottom_left = box.corners
    width = max(np.linalg.norm(top_right - top_left), np.linalg.norm(bottom_right - bottom_left))
    height = max(np.linalg.norm(bottom_left - top_left), np.linalg.norm(bottom_right - top_right))
    return int(width), int(height)


def _cut_out(picture: Image.Image, box: Box) -> Image.Image:
    """The text of a box, level; what is much higher than wide is taken to run upwards."""
    top_left, top_right, bottom_right, bottom_left = box.corners.tolist()
    quad = (*top_left, *bottom_left, *bottom_right, *top_right)
    crop = picture.transform(_size(box), Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.ROTATE_90) if crop.height >= 1.5 * crop.width else crop


def _text_width(crop: Image.Image) -> int:
    return min(_MAX_TEXT_WIDTH, math.ceil(_TEXT_HEIGHT * crop.width / crop.height))


def _fitted(crop: Image.Image, width: int) -> Floats:
    """[3, 48, width]: at the networks' height, zeros behind its end."""
    scaled = crop.resize((min(width, _text_width(crop)), _TEXT_HEIGHT), Image.Resampling.BILINEAR)
    padded = np.zeros((3, _TEXT_HEIGHT, width), dtype=np.float32)
    padded[:, :, : scaled.width] = _batch([scaled])[0]
    return padded


def _batch(pictures: Sequence[Image.Image]) -> Floats:
    """[n, 3, height, width] from -1 to 1, channels in the order blue, green, red that the networks were trained with."""
    pixels = np.stack([np.asarray(picture, dtype=np.float32) for picture in pictures])
    return np.ascontiguousarray((pixels[..., ::-1] / 127.5 - 1.0).transpose(0, 3, 1, 2))
