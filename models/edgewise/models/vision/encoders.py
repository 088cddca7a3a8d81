"""What the models that look at pictures have in common as an engine process runs them: decoding, and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from edgewise.core.errors import BadModelFile
from edgewise.models.encoders.rung import Book
from edgewise.models.files import ModelFiles
from edgewise.models.media.pictures import open_picture, to_rgb
from edgewise.models.onnx_session import RUNTIME, open_session, options_for
from edgewise.models.vision.network import Floats

PARAM: Final = "image"
"""The field that a picture comes in."""

Result = tuple[Mapping[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class Seen:
    """A picture that waits to be looked at, made small.

    Attributes:
        picture: RGB.
        width, height: As it came.
        options: The caller's.
    """

    picture: Image.Image
    width: int
    height: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class PictureEncoder:
    """Implements `engine.encoders.engine.Encoder`.

    Attributes:
        shrink: What of a picture is kept while it waits.
        look: What is seen in each of several.
        climb: Makes it quicker beside requests (`engine.encoders.climbs.Improves`), where it has a ladder.
    """

    shrink: Callable[[Image.Image], Image.Image]
    look: Callable[[Sequence[Seen]], Sequence[Mapping[str, Any]]]
    climb: Callable[[Book], None] | None = None

    def improve(self, book: Book) -> None:
        if self.climb is not None:
            self.climb(book)

    def check(self, content: bytes, options: Mapping[str, Any]) -> Seen:
        """Decoded: what is no picture is refused before it waits. Raises `InvalidRequest`."""
        picture = to_rgb(open_picture(content, PARAM, frame=int(options.get("frame", 0))))
        return Seen(self.shrink(picture), picture.width, picture.height, options)

    def compute(self, inputs: Sequence[Seen]) -> list[Result]:
        """See `engine.encoders.engine.Encoder`."""
        return [
            ({**found, "width": seen.width, "height": seen.height}, b"")
            for seen, found in zip(inputs, self.look(inputs), strict=True)
        ]


class Session:
    """A graph with one input and one output on the CPU."""

    def __init__(self, model: Path | bytes, threads: int) -> None:
        options = options_for(threads)
        options.enable_cpu_mem_arena = False  # sizes vary: an arena keeps the largest for ever
        try:
            self._session = open_session(model, options)
        except Exception as error:  # its errors have no common class but this
            raise BadModelFile(f"A network cannot be loaded ({error}): pull the model again.") from error
        (self._input,) = (one.name for one in self._session.get_inputs())

    @property
    def metadata(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        return found

    def __call__(self, pictures: Floats) -> Floats:
        output: Floats = self._session.run(None, {self._input: pictures})[0]
        return output


def path_of(files: ModelFiles, name: str) -> Path:
    path = files.paths.get(name)
    if path is None:
        raise BadModelFile(f"{files.name} has no file {name}: pull the model again.")
    return path


def numeric_class() -> str:
    return f"{RUNTIME}/cpu/float32"
