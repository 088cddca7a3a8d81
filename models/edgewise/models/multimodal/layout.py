"""How a family of models takes pictures and film: to which size they are brought, and which text stands for them in a prompt.

The chat template writes one marker for each medium. It is replaced by the family's own text, which has a placeholder for each
position that the medium takes; the tokenizer then makes ids of the whole, so that what stands around a picture is tokenized as in
training. Torch-free: layouts run in the service and in the process that decodes media.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgewise.core.errors import BadModelFile
from edgewise.models.multimodal.media import Media, MediaKind

Pixels: TypeAlias = NDArray[np.uint8]
"""[height, width, 3], RGB."""
Resampling: TypeAlias = Image.Resampling


@dataclass(frozen=True, slots=True)
class Fitted:
    """One picture or film as a model takes it.

    Attributes:
        text: Stands for it in the prompt, in place of the template's marker.
        media: In the order of their placeholders in `text`; where they start in the prompt is not known yet (0). More than one
            where each part of a picture is encoded by itself.
        size: (width, height) in pixels of what the model sees; of a picture that is also shown in parts, the parts put together.
        frames: Of a film; 1 for a picture.
    """

    text: str
    media: tuple[Media, ...]
    size: tuple[int, int]
    frames: int = 1


class Layout(Protocol):
    """A family's way, with the numbers of one model. Frozen and picklable.

    Attributes:
        markers: What the chat template writes for a medium of a kind; a kind that is missing is not taken.
        placeholders: Id of the token that is repeated for a medium of a kind.
    """

    @property
    def markers(self) -> Mapping[MediaKind, str]: ...

    @property
    def placeholders(self) -> Mapping[MediaKind, int]: ...

    @property
    def most_pixels(self) -> int:
        """What `picture` makes of any picture has no more pixels, all its parts together."""

    def picture(self, pixels: Pixels, param: str, *, max_pixels: int | None = None) -> Fitted:
        """Fit a picture.

        Args:
            pixels: Of any size.
            param: The field that it came in, for messages.
            max_pixels: The caller's bound of what the model sees of it, width * height, where the family has a choice.

        Raises:
            InvalidRequest: A shape that the family does not take.
        """


@runtime_checkable
class ScanLayout(Protocol):
    """What a layout has besides whose model may be shown a picture in parts as well, as the caller likes."""

    def scanning(self, on: bool) -> Layout:
        """The same layout, with parts or without."""


@runtime_checkable
class FilmLayout(Protocol):
    """What a layout has besides whose model takes film as such."""

    def most_frames(self, max_tokens: int) -> int:
        """How many frames of a useful size fit in so many positions."""

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
        """Fit frames that are evenly spaced in time; all are brought to the size that the first one asks for.

        Args:
            count: How many `frames` there are.
            param: The field that they came in, for messages.
            max_tokens: Positions that all of them may take.
            max_pixels: As of `Layout.picture`, for one frame.

        Raises:
            InvalidRequest: As `Layout.picture`.
        """


@runtime_checkable
class SoundLayout(Protocol):
    """What a layout has besides whose model hears."""

    def sound(self, samples: NDArray[np.float32], param: str) -> Fitted:
        """Fit a recording, mono at 16 kHz.

        Raises:
            InvalidRequest: It is longer than the model hears.
        """


def medium(
    kind: MediaKind,
    samples: NDArray[Any],
    count: int,
    *,
    grid: tuple[int, int, int] | None = None,
    second: float = 0.0,
    whole: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Media:
    """A medium that is not placed yet, with its digest, which also covers what decides positions. `samples`: `Media.content`."""
    content = np.ascontiguousarray(samples).tobytes()
    told = json.dumps(
        [kind, list(samples.shape), str(samples.dtype), grid, second, whole, options or {}], sort_keys=True
    )
    return Media(
        kind=kind,
        start=0,
        count=count,
        digest=hashlib.sha256(told.encode() + b"\n" + content).digest(),
        content=content,
        shape=tuple(samples.shape),
        grid=grid,
        second=second,
        whole=whole,
        options=options or {},
    )


def place(prompt: Sequence[int], media: Sequence[Media], placeholders: Mapping[MediaKind, int]) -> tuple[Media, ...]:
    """The media where their placeholders stand in a prompt, both in the same order.

    Raises:
        BadModelFile: The prompt has other placeholders than the media need: tokenizer and layout do not belong together.
    """
    ids = frozenset(placeholders.values())
    spots = [index for index, token in enumerate(prompt) if token in ids]
    placed, at = [], 0
    for one in media:
        run = spots[at : at + one.count]
        at += one.count
        wanted = placeholders[one.kind]
        if len(run) != one.count or run[-1] - run[0] != one.count - 1 or any(prompt[spot] != wanted for spot in run):
            raise _no_place(one)
        placed.append(replace(one, start=run[0]))
    if at != len(spots):
        raise BadModelFile(f"The prompt has {len(spots)} placeholders of media, which need {at}.")
    return tuple(placed)


def _no_place(one: Media) -> BadModelFile:
    return BadModelFile(f"The prompt has no {one.count} placeholders in a row for a medium of kind '{one.kind}'.")


def resized(pixels: Pixels, width: int, height: int, resample: Resampling) -> Pixels:
    """By Pillow, whose filters the families' own processors use; the same picture where it has this size already."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), resample), dtype=np.uint8)
