"""Positions in three dimensions (time, height, width) of a prompt with pictures and film: M-RoPE (Wang et al. 2024, Qwen2-VL)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgewise.models.multimodal.media import Media

Positions = NDArray[np.int64]


def rope_positions(length: int, media: Iterable[Media]) -> Positions:
    """[3, length] int64 of a prompt.

    Text counts on in all three alike. A medium with a grid takes the position after the text before it as its origin and numbers
    its frames, rows and columns from there. Text after it goes on behind the largest position so far, and so does the answer.

    Args:
        length: Tokens of the prompt.
        media: What its placeholders stand for, in order.
    """
    positions = np.empty((3, length), dtype=np.int64)
    done, origin = 0, 0
    for one in media:
        if one.grid is None:
            continue
        positions[:, done : one.start] = np.arange(origin, origin + one.start - done)
        origin += one.start - done
        placed = grid_positions(one.grid, one.second)
        positions[:, one.start : one.end] = origin + placed
        origin += int(placed.max()) + 1
        done = one.end
    positions[:, done:] = np.arange(origin, origin + length - done)
    return positions


def grid_positions(grid: tuple[int, int, int], second: float) -> Positions:
    """[3, frames * rows * columns] of a medium with a grid, from 0 on; `second` as in `Media`."""
    frames, rows, columns = grid
    times = np.array([math.floor(frame * second) if second else frame for frame in range(frames)], dtype=np.int64)
    axes = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack([axis.ravel() for axis in axes]).astype(np.int64)
