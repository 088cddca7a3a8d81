"""Pictures and film of callers, decoded and brought to the form in which a model takes them. Runs in the media process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgewise.core.errors import BadModelFile, EngineFault
from edgewise.models.files import ModelFiles
from edgewise.models.media.pictures import read_rgb
from edgewise.models.media.process import MediaProcess
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Fitted, Layout
from edgewise.models.multimodal.media import Media

_FIELDS = ("kind", "count", "grid", "second", "whole", "options")


def fit_picture(
    process: MediaProcess, files: ModelFiles, data: bytes, param: str, *, max_pixels: int | None
) -> tuple[Fitted, tuple[int, int]]:
    """A picture as a model takes it, and its (width, height) as it came, upright. Waits: call it in a thread.

    Args:
        files: Of the model.
        max_pixels: As of `Layout.picture`.

    Raises:
        InvalidRequest: It cannot be read, is beyond a limit, or of a shape that the model does not take.
    """
    head, content = process.decode("picture", data, {**_told(files), "max_pixels": max_pixels}, param=param)
    return _read(head, content), tuple(head["came"])


def _told(files: ModelFiles) -> dict[str, Any]:
    """What the process needs to read the layout of a model."""
    paths = {name: str(path) for name, path in files.paths.items() if name.endswith(".json")}
    return {"model": files.name, "digest": files.digest, "format": files.format, "paths": sorted(paths.items())}


def picture(data: bytes, param: str, *, max_pixels: int | None, **model: Any) -> tuple[dict[str, Any], bytes]:
    """The job: decode and fit."""
    pixels = read_rgb(data, param)
    fitted = _layout(model).picture(pixels, param, max_pixels=max_pixels)
    return _packed(fitted, (pixels.shape[1], pixels.shape[0]))


def _layout(model: Mapping[str, Any]) -> Layout:
    paths = tuple((name, path) for name, path in model["paths"])
    return _layout_of(model["model"], model["digest"], model["format"], paths)


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
