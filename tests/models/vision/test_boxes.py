"""Boxes around what a detector has found, against drawings whose boxes are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from edgewise.models.vision.boxes import Box, find_boxes, reading_order, smallest_rectangle


def rectangle(center: tuple[float, float], width: float, height: float, angle: float) -> np.ndarray:
    """[4, 2] corners, turned by `angle` degrees."""
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    half = np.array([[-width, -height], [width, -height], [width, height], [-width, height]]) / 2
    return np.asarray(half @ np.array([[c, s], [-s, c]]) + center)


def probability(*drawn: np.ndarray) -> np.ndarray:
    picture = Image.new("F", (400, 300), 0.0)
    for corners in drawn:
        ImageDraw.Draw(picture).polygon([(float(x), float(y)) for x, y in corners], fill=0.9)
    return np.array(picture)


@pytest.mark.parametrize("angle", [-40, -7, 0, 3, 30])
def test_a_turned_rectangle_is_found_and_grown(angle: float) -> None:
    width, height = 200.0, 24.0
    (box,) = find_boxes(probability(rectangle((200, 150), width, height, angle)))
    grown = width * height * 1.6 / (2 * (width + height))
    expected = rectangle((200, 150), width + 2 * grown, height + 2 * grown, angle)
    assert np.abs(box.corners - expected).max() < 4.5  # pixels are squares, and dilated by one
    assert box.score > 0.8


def test_the_smallest_rectangle_is_no_larger_than_any_other() -> None:
    chance = np.random.default_rng(0)
    for _ in range(30):
        points = chance.integers(0, 60, (chance.integers(3, 40), 2))
        corners = smallest_rectangle(points)
        area = np.linalg.norm(corners[1] - corners[0]) * np.linalg.norm(corners[3] - corners[0])
        angles = np.radians(np.arange(0, 90, 0.5))
        turned = [points @ np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in angles]
        assert area <= min(np.prod(np.ptp(one, axis=0)) for one in turned) + 1e-6
        for x, y in points:  # none lies outside
            for one, following in zip(corners, np.roll(corners, -1, axis=0), strict=True):
                side = following - one
                assert side[0] * (y - one[1]) - side[1] * (x - one[0]) >= -1e-6 * (1 + np.abs(side).sum() * 60)


@pytest.mark.parametrize("points", [[(3, 4)], [(3, 4), (9, 4)], [(0, 0), (5, 5), (2, 2)]])
def test_degenerate_points_have_a_rectangle_too(points: list[tuple[int, int]]) -> None:
    corners = smallest_rectangle(np.array(points))
    assert np.allclose(sorted(map(tuple, corners.round(6)))[0], min(points))


def test_noise_and_weak_regions_are_left_out() -> None:
    noisy = probability(rectangle((200, 150), 100, 20, 0))
    noisy[10, 10] = noisy[20:22, 300] = 0.9
    noisy[250:270, 50:150] = 0.4  # above the pixel threshold, below the box threshold
    assert len(find_boxes(noisy)) == 1
    assert find_boxes(np.zeros((64, 64), np.float32)) == []
    assert len(find_boxes(np.ones((64, 64), np.float32))) == 1


def test_touching_shapes_are_one_region() -> None:
    ring = np.zeros((100, 100), np.float32)
    ring[20:80, 20:80] = 0.9
    ring[40:60, 40:60] = 0.0
    steps = np.zeros((100, 100), np.float32)
    for step in range(8):  # each touches the next at a corner only
        steps[10 + step * 10 : 20 + step * 10, 10 + step * 10 : 20 + step * 10] = 0.9
    assert len(find_boxes(ring)) == 1
    assert len(find_boxes(steps, box_threshold=0.0)) == 1


def test_reading_order() -> None:
    def at(x: float, y: float) -> Box:
        return Box(rectangle((x, y), 50, 10, 0), 1.0)

    boxes = [at(300, 104), at(100, 100), at(200, 60), at(100, 150)]
    order = [tuple(box.corners.mean(axis=0)) for box in reading_order(boxes)]
    assert order == [(200, 60), (100, 100), (300, 104), (100, 150)]
