"""Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025): pictures of nearly their own size, 28 x 28 pixels a position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image

from edgewise.core.errors import InvalidRequest
from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import Fitted, Pixels, medium, resized
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.multimodal.pixels import edge_options, film_options, picture_options

PATCH: Final = 14
MERGE: Final = 2
MLP_ROWS: Final = 2048
"""Patches whose feed-forward blocks are computed together."""
_MAX_PIXELS: Final = 1 << 30
MOST_TOKENS: Final = 4096
"""Of a picture, or of one position in time of a film, however much a model would take: the memory of encoding grows with it."""
_MOST_STRETCHED: Final = 200
_FLOATS: Final = 4
_MARKERS: Final[Mapping[MediaKind, str]] = {"image": "<|image_pad|>", "video": "<|video_pad|>"}


TEXT_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {"qwen2": {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}}
"""Those of transformers' classes that differ from plain Qwen2's."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Pixels that a picture, or a frame of a film, has at least and at most after resizing."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenLayout:
    """Attributes:
    placeholders: Ids of <|image_pad|> and <|video_pad|>.
    side: Pixels of one position, across and down.
    depth: Frames of one position in time.
    per_second: Positions in time of one second of film; 0 where each position in time counts one, whatever it lasts (Qwen2-VL).
    """

    placeholders: Mapping[MediaKind, int]
    side: int
    depth: int
    picture_bounds: Bounds
    film_bounds: Bounds
    per_second: float

    @property
    def markers(self) -> Mapping[MediaKind, str]:
        return _MARKERS

    @property
    def most_pixels(self) -> int:
        return max(self.side**2, self.picture_bounds.most)

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        width, height = self.target(pixels.shape[1], pixels.shape[0], param, self.picture_bounds, max_pixels)
        frames = resized(pixels, width, height, Image.Resampling.BICUBIC)[None]
        return self._fitted("image", frames, grid_frames=1, second=0.0)

    def most_frames(self, max_tokens: int) -> int:
        """See `FilmLayout`."""
        return self.depth * max(1, max_tokens // max(1, self.film_bounds.least // self.side**2))

    def film(
        self,
        frames: Iterable[Pixels],
        count: int,
        seconds_per_frame: float,
        param: str,
        *,
        max_tokens: int,
        max_pixels: int | None = None,
    ) -> Fitted:
        """See `FilmLayout`. A last position in time that lacks frames repeats the last one."""
        times = -(-count // self.depth)
        most = max(1, max_tokens // times) * self.side**2
        bound = most if max_pixels is None else min(most, max_pixels)
        fitted: list[Pixels] = []
        for frame in frames:
            if not fitted:
                width, height = self.target(frame.shape[1], frame.shape[0], param, self.film_bounds, bound)
            fitted.append(resized(frame, width, height, Image.Resampling.BICUBIC))
        fitted += [fitted[-1]] * (-len(fitted) % self.depth)
        second = self.per_second * seconds_per_frame * self.depth
        return self._fitted("video", np.stack(fitted), grid_frames=len(fitted) // self.depth, second=second)

    def target(self, width: int, height: int, param: str, bounds: Bounds, max_pixels: int | None) -> tuple[int, int]:
        """(width, height): multiples of `side` as near to the picture's as the bounds allow. Small ones are enlarged within
        `max_pixels`.

        Raises:
            InvalidRequest: One side is more than 200 times the other.
        """
        if max(width, height) > _MOST_STRETCHED * min(width, height):
            raise InvalidRequest(
                f"'{param}' is {width} x {height} pixels: this model takes pictures whose longer side is at most "
                f"{_MOST_STRETCHED} times the shorter. Cut it.",
                param=param,
            )
        most = bounds.most if max_pixels is None else max(self.side**2, min(bounds.most, max_pixels))
        least = min(bounds.least, most)
        rows, columns = round(height / self.side), round(width / self.side)
        if rows * columns * self.side**2 > most:
            scale = math.sqrt(width * height / most)
            rows = max(1, math.floor(height / scale / self.side))
            columns = max(1, math.floor(width / scale / self.side))
        elif rows * columns * self.side**2 < least:
            scale = math.sqrt(least / (width * height))
            rows, columns = math.ceil(height * scale / self.side), math.ceil(width * scale / self.side)
            if max_pixels is not None and rows * columns * self.side**2 > most:  # where the least is nearly the most
                places = max(1, most // self.side**2)
                rows = min(places, max(1, math.floor(height * scale / self.side)))
                columns = min(places // rows, max(1, math.floor(width * scale / self.side)))
        return columns * self.side, rows * self.side

    def _fitted(self, kind: MediaKind, frames: Any, *, grid_frames: int, second: float) -> Fitted:
        height, width = frames.shape[1:3]
        grid = (grid_frames, height // self.side, width // self.side)
        count = math.prod(grid)
        one = medium(kind, frames, count, grid=grid, second=second)
        return Fitted(self.markers[kind] * count, (one,), (width, height), len(frames))


def read_layout(config: Fields, files: ModelFiles) -> QwenLayout:
    """Raises:
    BadModelFile: A number is missing or impossible.
    """
    vision = Fields(config.get("vision_config", {}), config.where)
    pictures, film = picture_options(files), film_options(files)
    side = vision.size("patch_size", PATCH) * vision.size("spatial_merge_size", MERGE)
    timed = config.get("model_type") == "qwen2_5_vl"
    return QwenLayout(
        placeholders={"image": config.size("image_token_id", 151655), "video": config.size("video_token_id", 151656)},
        side=side,
        depth=vision.size("temporal_patch_size", 2),
        picture_bounds=_bounds(pictures, Bounds(56 * 56, 28 * 28 * 1280), side),
        film_bounds=_bounds(film, Bounds(128 * 28 * 28, 28 * 28 * 768), side),
        per_second=vision.positive("tokens_per_second", 4) if timed else 0.0,
    )


def _bounds(options: Fields, default: Bounds, side: int) -> Bounds:
    """Older files call them min_pixels and max_pixels, newer ones the edges of "size", which are pixels all the same."""
    size = Fields(edge_options(options), options.where)
    most = options.size("max_pixels", size.size("longest_edge", default.most, _MAX_PIXELS), _MAX_PIXELS)
    least = options.size("min_pixels", size.size("shortest_edge", default.least))
    return Bounds(least, min(most, MOST_TOKENS * side**2))


def workspace(config: Fields) -> int:
    """Bytes that encoding one position in time takes at most; the tower computes them one after the other."""
    vision = Fields(config.get("vision_config", {}), config.where)
    width = vision.size("embed_dim", vision.size("hidden_size", 1280))
    inner = vision.size("intermediate_size", 4 * width)
    merged = vision.size("spatial_merge_size", MERGE) ** 2
    return _FLOATS * (MOST_TOKENS * merged * 13 * width + 3 * MLP_ROWS * inner)
