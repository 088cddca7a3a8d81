"""Rotated boxes around text from a detector's probability map: the box part of DB (Liao et al. 2020), in NumPy.

PaddleOCR finds contours, fits the smallest rectangle to each, and grows it. A rectangle grown by a distance on all sides with
round corners has the same smallest rectangle as one whose sides are moved outwards, so no polygon library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgewise.models.vision.network import Floats

Corners = npt.NDArray[np.float64]
"""[4, 2]: x, y of the top left, top right, bottom right and bottom left corner of the text."""

_MIN_SIDE = 3.0
_MAX_REGIONS = 1000


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of text; `score` is the detector's mean probability inside, 0 to 1."""

    corners: Corners
    score: float


def find_boxes(
    probability: Floats, *, threshold: float = 0.3, box_threshold: float = 0.5, unclip: float = 1.6
) -> list[Box]:
    """Boxes in pixels of the map, in no order.

    Args:
        probability: [height, width], that a pixel is the core of a text.
        threshold: From where on a pixel belongs to a region.
        box_threshold: Boxes whose mean probability is lower are left out.
        unclip: A region is the text's core: it grows by area * unclip / perimeter (equation 10 of the paper).
    """
    found: list[Box] = []
    for points in _regions(_dilated(probability > threshold))[:_MAX_REGIONS]:
        corners = smallest_rectangle(points)
        if min(_sides(corners)) < _MIN_SIDE:
            continue
        score = _mean_inside(probability, corners)
        if score < box_threshold:
            continue
        width, height = _sides(corners)
        grown = _grown(corners, width * height * unclip / (2 * (width + height)))
        if min(_sides(grown)) >= _MIN_SIDE + 2:
            found.append(Box(grown, score))
    return found


def reading_order(boxes: list[Box], line_height: float = 10.0) -> list[Box]:
    """From top to bottom, and from left to right within a line: boxes whose tops are closer than `line_height` follow each other
    in one."""
    by_top = sorted(boxes, key=lambda box: float(box.corners[0, 1]))
    lines: list[list[Box]] = []
    for box in by_top:
        if lines and box.corners[0, 1] - lines[-1][-1].corners[0, 1] < line_height:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda box: float(box.corners[0, 0]))]


def _dilated(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """By a square of 2 x 2, as PaddleOCR does, so that thin strokes hold together."""
    padded = np.pad(mask, ((1, 0), (1, 0)))
    return padded[1:, 1:] | padded[:-1, 1:] | padded[1:, :-1] | padded[:-1, :-1]


def _regions(mask: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """Connected regions (8 neighbours), each as [n, 2] x, y of the ends of its runs: all that a hull needs.

    Runs of each row are joined with those of the row above that they touch (union-find).
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1] - 1
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
    for row in range(1, mask.shape[0]):
        above, here, above_end, here_end = int(first[row - 1]), int(first[row]), int(first[row]), int(first[row + 1])
        while above < above_end and here < here_end:
            if starts[above] <= ends[here] + 1 and starts[here] <= ends[above] + 1:
                parent[root(here)] = root(above)
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1
    by_root: dict[int, list[int]] = {}
    for run in range(len(rows)):
        by_root.setdefault(root(run), []).append(run)
    return [
        np.concatenate([np.stack([starts[runs], rows[runs]], 1), np.stack([ends[runs], rows[runs]], 1)])
        for runs in by_root.values()
    ]


def _hull(points: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Convex hull, counter-clockwise (Andrew's monotone chain)."""
    ordered = sorted({(int(x), int(y)) for x, y in points})
    if len(ordered) <= 2:
        return np.array(ordered, dtype=np.float64)

    def chain(run: list[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for x, y in run:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2], kept[-1]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]), dtype=np.float64)


def smallest_rectangle(points: npt.NDArray[np.int64]) -> Corners:
    """The rectangle of least area around points: one of its sides lies along a side of the hull (Freeman & Shapira 1975)."""
    hull = _hull(points)
    if len(hull) == 1:
        return np.repeat(hull, 4, axis=0)
    sides = np.roll(hull, -1, axis=0) - hull
    along = np.unique(np.mod(np.arctan2(sides[:, 1], sides[:, 0]), np.pi / 2))
    axes = np.stack([np.cos(along), np.sin(along), -np.sin(along), np.cos(along)], axis=1).reshape(-1, 2, 2)
    turned = hull @ axes.transpose(0, 2, 1)  # [angles, points, 2]
    low, high = turned.min(axis=1), turned.max(axis=1)
    best = int(np.prod(high - low, axis=1).argmin())
    (left, top), (right, bottom) = low[best], high[best]
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    return _ordered(np.asarray(corners @ axes[best], dtype=np.float64))


def _ordered(corners: Corners) -> Corners:
    """The two leftmost corners are the left side of the text."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left = by_x[:2][np.argsort(by_x[:2, 1], kind="stable")]
    right = by_x[2:][np.argsort(by_x[2:, 1], kind="stable")]
    return np.array([left[0], right[0], right[1], left[1]])


def _sides(corners: Corners) -> tuple[float, float]:
    """Width and height."""
    return float(np.linalg.norm(corners[1] - corners[0])), float(np.linalg.norm(corners[3] - corners[0]))


def _grown(corners: Corners, distance: float) -> Corners:
    """Every side moved outwards."""
    width, height = _sides(corners)
    right = (corners[1] - corners[0]) / width * distance
    down = (corners[3] - corners[0]) / height * distance
    grown: Corners = corners + np.array([-right - down, right - down, right + down, -right + down])
    return grown


def _mean_inside(probability: Floats, corners: Corners) -> float:
    """Mean of the pixels whose centre lies in the box."""
    height, width = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    y, x = np.mgrid[top : bottom + 1, left : right + 1]
    inside = np.ones(y.shape, dtype=bool)
    for one, following in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        side = following - one
        inside &= side[0] * (y - one[1]) - side[1] * (x - one[0]) >= -1e-6 * np.abs(side).sum()
    part = probability[top : bottom + 1, left : right + 1]
    return float(part[inside].mean()) if inside.any() else 0.0
