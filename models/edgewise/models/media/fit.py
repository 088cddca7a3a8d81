"""The media process's jobs for pictures and film: decode, and bring to the form in which a model takes them.

`models.media.fitting` asks for them; it does not import this module, which loads FFmpeg.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from PIL import Image

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.media.fitting import FilmWish
from edgewise.models.media.pictures import frame_seconds, read_rgb
from edgewise.models.media.video import FPS, Film, frames_of, open_film
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import FilmLayout, Fitted, Layout, Pixels, ScanLayout

_ANIMATIONS: Final = (b"GIF8", b"\x89PNG")
"""How files of pictures begin that may move, besides WebP."""
_JPEG_SIDE: Final = 65_500
STILL_PIXELS: Final = 512 * 512
"""What a model that takes no film sees of each frame at most, where it has a choice."""
_FIELDS = ("kind", "count", "grid", "second", "whole", "options")


def picture(
    data: bytes, param: str, *, max_pixels: int | None, share: float, pan_and_scan: bool | None, **model: Any
) -> tuple[dict[str, Any], bytes]:
    """The job: decode and fit."""
    pixels, layout = read_rgb(data, param), layout_of(model, pan_and_scan)
    fitted = layout.picture(pixels, param, max_pixels=max_pixels)
    usual = math.prod(fitted.size)
    if share < 1:
        fitted = layout.picture(pixels, param, max_pixels=max(1, int(usual * share)))
    head, content = _packed(fitted, (pixels.shape[1], pixels.shape[0]))
    return {**head, "usual_pixels": usual}, content


def film(
    data: bytes,
    param: str,
    *,
    fps: float | None,
    frames: int | None,
    max_tokens: int,
    max_pixels: int | None,
    share: float,
    sizes: Sequence[int] | None,
    **model: Any,
) -> tuple[dict[str, Any], bytes]:
    """The job: decode and fit a film, or the pictures of `sizes` bytes that are its frames."""
    wish = FilmWish(fps=fps, frames=frames, max_tokens=max_tokens, max_pixels=max_pixels, share=share)
    with _opened(data, param, sizes, fps) as source:
        return _film(layout_of(model), source, param, wish)


def film_pictures(
    data: bytes,
    param: str,
    *,
    fps: float | None,
    frames: int | None,
    most: int,
    share: float,
    sizes: Sequence[int] | None,
) -> tuple[dict[str, Any], bytes]:
    """The job: frames of a film, at most `most` of them, encoded as pictures of their own."""
    with _opened(data, param, sizes, fps) as source:
        usual = source.count(fps=fps, frames=frames, most=most)
        count = max(1, round(usual * share))
        pictures = [_encoded(frame) for frame in source.frames(count)]
        head = {
            "sizes": [len(one) for one in pictures],
            "came": source.size,
            "usual_frames": usual,
            "every_s": source.seconds / count,
        }
    return head, b"".join(pictures)


def _encoded(frame: Pixels) -> bytes:
    """As good as lossless to who reads text in it; what is too long for JPEG is stored without loss."""
    out = io.BytesIO()
    if max(frame.shape) > _JPEG_SIDE:
        Image.fromarray(frame).save(out, "PNG", compress_level=1)
    else:
        Image.fromarray(frame).save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


@contextmanager
def _opened(data: bytes, param: str, sizes: Sequence[int] | None, fps: float | None) -> Iterator[Source]:
    """A film, or the pictures of `sizes` bytes that are its frames."""
    if sizes is not None:
        yield _Stills(data, sizes, param, fps)
    elif data.startswith(_ANIMATIONS) or data[8:12] == b"WEBP":
        yield _Animation(data, param)
    else:
        with open_film(data, param) as opened:
            yield opened


class _Stills:
    """Pictures that are the frames of a film; as `video.Film`."""

    def __init__(self, data: bytes, sizes: Sequence[int], param: str, fps: float | None) -> None:
        ends = list(itertools.accumulate(sizes))
        self._parts = [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self._param = param
        self.seconds = len(sizes) / (FPS if fps is None else fps)
        self.size = (0, 0)

    def count(self, *, fps: float | None, frames: int | None, most: int) -> int:
        del fps
        return max(1, min(len(self._parts) if frames is None else frames, len(self._parts), most))

    def frames(self, count: int) -> Iterator[Pixels]:
        for index in range(count):
            pixels = read_rgb(self._parts[index * len(self._parts) // count], self._param)
            if not index:
                self.size = (pixels.shape[1], pixels.shape[0])
            yield pixels


class _Animation:
    """A picture that moves; as `video.Film`."""

    def __init__(self, data: bytes, param: str) -> None:
        self._ends = np.cumsum(frame_seconds(data, param))
        self._data = data
        self._param = param
        self.seconds = max(float(self._ends[-1]), 1e-3)
        self.size = (0, 0)

    def count(self, *, fps: float | None, frames: int | None, most: int) -> int:
        return frames_of(self.seconds, fps=fps, frames=frames, most=most)

    def frames(self, count: int) -> Iterator[Pixels]:
        for index in range(count):
            number = int(np.searchsorted(self._ends, index * self.seconds / count, side="right"))
            pixels = read_rgb(self._data, self._param, frame=min(number, len(self._ends) - 1))
            self.size = (pixels.shape[1], pixels.shape[0])
            yield pixels


Source: TypeAlias = "Film | _Stills | _Animation"


def _film(layout: Layout, source: Source, param: str, wish: FilmWish) -> tuple[dict[str, Any], bytes]:
    if isinstance(layout, FilmLayout):
        usual = source.count(fps=wish.fps, frames=wish.frames, most=layout.most_frames(wish.max_tokens))
        count = max(1, round(usual * wish.share))
        every = source.seconds / count
        shown = layout.film(
            source.frames(count), count, every, param, max_tokens=wish.max_tokens, max_pixels=wish.max_pixels
        )
        fitted = [shown]
    else:
        bound = min(STILL_PIXELS, wish.max_pixels or STILL_PIXELS)
        first = layout.picture(next(source.frames(1)), param, max_pixels=bound)
        tokens = sum(one.count for one in first.media)
        usual = source.count(fps=wish.fps, frames=wish.frames, most=max(1, wish.max_tokens // tokens))
        count = max(1, round(usual * wish.share))
        every = source.seconds / count
        fitted = [layout.picture(frame, param, max_pixels=bound) for frame in source.frames(count)]
    packed = [_packed(one, source.size) for one in fitted]
    head = {
        "parts": [one for one, _ in packed],
        "came": source.size,
        "frames": count,
        "usual_frames": usual,
        "every_s": every,
    }
    return head, b"".join(content for _, content in packed)


def layout_of(model: Mapping[str, Any], pan_and_scan: bool | None = None) -> Layout:
    """That of a model by what `models.media.fitting` tells of it, with parts of pictures or without where it has a choice."""
    paths = tuple((name, path) for name, path in model["paths"])
    layout = _layout_of(model["model"], model["digest"], model["format"], paths)
    return layout.scanning(pan_and_scan) if pan_and_scan is not None and isinstance(layout, ScanLayout) else layout


@lru_cache(maxsize=8)
def _layout_of(name: str, digest: str, kind: Any, paths: tuple[tuple[str, str], ...]) -> Layout:
    files = ModelFiles(name=name, digest=digest, format=kind, paths={key: Path(path) for key, path in paths})
    layout = read_layout(files)
    if layout is None:
        raise BadModelFile(f"{name}: this model takes no pictures.")
    return layout


def _packed(fitted: Fitted, came: tuple[int, int]) -> tuple[dict[str, Any], bytes]:
    media = [
        {
            **{name: getattr(one, name) for name in _FIELDS},
            "options": dict(one.options),
            "digest": one.digest.hex(),
            "shape": one.shape,
            "bytes": len(one.content),
        }
        for one in fitted.media
    ]
    head = {"text": fitted.text, "size": fitted.size, "frames": fitted.frames, "media": media, "came": came}
    return head, b"".join(one.content for one in fitted.media)
