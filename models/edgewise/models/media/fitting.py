"""Pictures and film of callers in the form in which a model takes them, made by the media process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.core.errors import EngineFault
from edgewise.models.files import ModelFiles
from edgewise.models.media.process import MediaProcess
from edgewise.models.multimodal.layout import Fitted
from edgewise.models.multimodal.media import Media


@dataclass(frozen=True, slots=True)
class FittedPicture:
    """Attributes:
    came: (width, height) as it was sent, upright.
    usual_pixels: What the model would see of it without `share`.
    """

    fitted: Fitted
    came: tuple[int, int]
    usual_pixels: int


def picture_needs(
    process: MediaProcess, files: ModelFiles, data: bytes, param: str, *, pan_and_scan: bool | None = None
) -> int:
    """Bytes that `fit_picture` takes at most, by the picture's header and the model's layout. Waits; raises as it does."""
    options = {**_told(files), "pan_and_scan": pan_and_scan}
    head, _ = process.decode("needs-picture", data, options, param=param)
    return int(head["bytes"])


def film_needs(process: MediaProcess, data: Sequence[bytes], param: str, max_tokens: int) -> int:
    """As `picture_needs`, of a film or its frames; without tokens of `film_pictures`."""
    sizes = [len(one) for one in data] if len(data) > 1 else None
    options = {"max_tokens": max_tokens, "sizes": sizes}
    head, _ = process.decode("needs-film", b"".join(data), options, param=param)
    return int(head["bytes"])


def fit_picture(
    process: MediaProcess,
    files: ModelFiles,
    data: bytes,
    param: str,
    *,
    max_pixels: int | None,
    share: float = 1.0,
    pan_and_scan: bool | None = None,
) -> FittedPicture:
    """A picture as a model takes it. Waits: call it in a thread.

    Args:
        files: Of the model.
        max_pixels: As of `Layout.picture`.
        share: Of the pixels that the model would see then.
        pan_and_scan: Whether it is shown in parts as well, of models that leave that open; None for as the model's files say.

    Raises:
        InvalidRequest: It cannot be read, is beyond a limit, or of a shape that the model does not take.
    """
    options = {**_told(files), "max_pixels": max_pixels, "share": share, "pan_and_scan": pan_and_scan}
    head, content = process.decode("picture", data, options, param=param)
    width, height = head["came"]
    return FittedPicture(_read(head, content), (width, height), head["usual_pixels"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmWish:
    """How a film shall be seen.

    Attributes:
        fps, frames: As of `models.media.video.Film.count`; of a list of pictures `fps` is how fast they were taken.
        max_tokens: Positions that it may take.
        max_pixels: As of `Layout.picture`, for one frame.
        share: Of the frames that would be looked at otherwise.
    """

    fps: float | None
    frames: int | None
    max_tokens: int
    max_pixels: int | None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class FittedFilm:
    """A film as a model takes it.

    Attributes:
        parts: One, or for a model that takes pictures only, its frames.
        came: (width, height) of its frames, upright.
        frames: How many are seen.
        usual_frames: How many would be without `share`.
        every_s: Seconds from one to the next.
    """

    parts: tuple[Fitted, ...]
    came: tuple[int, int]
    frames: int
    usual_frames: int
    every_s: float


def fit_film(process: MediaProcess, files: ModelFiles, data: Sequence[bytes], param: str, wish: FilmWish) -> FittedFilm:
    """A film as a model takes it: as such, or as pictures. Waits: call it in a thread.

    Args:
        data: A film, or several pictures, which are its frames.

    Raises:
        InvalidRequest: As `fit_picture`.
    """
    sizes = [len(one) for one in data] if len(data) > 1 else None
    options = {**_told(files), **asdict(wish), "sizes": sizes}
    head, content = process.decode("film", b"".join(data), options, param=param)
    parts, at = [], 0
    for one in head["parts"]:
        size = sum(medium["bytes"] for medium in one["media"])
        parts.append(_read(one, content[at : at + size]))
        at += size
    width, height = head["came"]
    return FittedFilm(tuple(parts), (width, height), head["frames"], head["usual_frames"], head["every_s"])


@dataclass(frozen=True, slots=True)
class FilmPictures:
    """Frames of a film, evenly spaced in time, as encoded pictures.

    Attributes:
        pictures: JPEG or PNG.
        came: (width, height) of its frames, upright.
        usual_frames: How many there would be without `share`.
        every_s: Seconds from one to the next.
    """

    pictures: tuple[bytes, ...]
    came: tuple[int, int]
    usual_frames: int
    every_s: float


def film_pictures(
    process: MediaProcess,
    data: Sequence[bytes],
    param: str,
    *,
    fps: float | None,
    frames: int | None,
    most: int,
    share: float = 1.0,
) -> FilmPictures:
    """Frames of a film for models that look at pictures one by one. Waits: call it in a thread.

    Args:
        data: As of `fit_film`.
        fps, frames, share: As of `FilmWish`.
        most: Frames at most.

    Raises:
        InvalidRequest: As `fit_picture`.
    """
    sizes = [len(one) for one in data] if len(data) > 1 else None
    options = {"fps": fps, "frames": frames, "most": most, "share": share, "sizes": sizes}
    head, content = process.decode("film-pictures", b"".join(data), options, param=param)
    ends = list(itertools.accumulate(head["sizes"]))
    pictures = tuple(content[end - size : end] for end, size in zip(ends, head["sizes"], strict=True))
    width, height = head["came"]
    return FilmPictures(pictures, (width, height), head["usual_frames"], head["every_s"])


def _told(files: ModelFiles) -> dict[str, Any]:
    """What the process needs to read the layout of a model."""
    paths = {name: str(path) for name, path in files.paths.items() if name.endswith(".json")}
    return {"model": files.name, "digest": files.digest, "format": files.format, "paths": sorted(paths.items())}


def _read(head: Mapping[str, Any], content: bytes) -> Fitted:
    media, at = [], 0
    for one in head["media"]:
        part = content[at : at + one["bytes"]]
        at += one["bytes"]
        media.append(
            Media(
                kind=one["kind"],
                start=0,
                count=one["count"],
                digest=bytes.fromhex(one["digest"]),
                content=part,
                shape=tuple(one["shape"]),
                grid=None if one["grid"] is None else tuple(one["grid"]),
                second=one["second"],
                whole=one["whole"],
                options=one["options"],
            )
        )
    if at != len(content):
        raise EngineFault("The process that decodes media sent more than it told.")
    width, height = head["size"]
    return Fitted(head["text"], tuple(media), (width, height), head["frames"])
