"""What hangs on the messages of a conversation besides text, as the caller named it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgewise.models.multimodal.media import MediaKind

Detail = Literal["auto", "low", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A picture or a film in a message. Its bytes have not been fetched.

    Attributes:
        param: The field that it came in, for messages.
        urls: Data URLs or https URLs; several are the frames of one film.
        file: Id of an uploaded file, in place of URLs.
        detail: How closely to look, as OpenAI has it: "low" bounds the pixels that the model sees.
        fps: Of a film: frames to look at for each second; of a list of frames, how fast they were taken.
        frames: Of a film: how many to look at, at most.
    """

    kind: MediaKind
    param: str
    urls: tuple[str, ...]
    file: str | None = None
    detail: Detail = "auto"
    fps: float | None = None
    frames: int | None = None
