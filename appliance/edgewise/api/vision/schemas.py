"""The bodies of /edgewise/v1/vision/*."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.keep_alive import KeepAlive
from edgewise.api.schemas import MAX_TIMEOUT_S
from edgewise.models.media.pictures import MAX_FRAME

MAX_TOP = 100


class LookBody(BaseModel):
    """A picture and how to look at it. `null` means "not given" everywhere."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    image: Annotated[str, Field(min_length=1, description="A data URL, or an https URL that this service may fetch.")]
    model: str | None = None
    frame: Annotated[int, Field(ge=0, le=MAX_FRAME, description="Of an animation, from 0.")] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None


class ReadBody(LookBody):
    """POST /edgewise/v1/vision/ocr."""


class LabelBody(LookBody):
    """POST /edgewise/v1/vision/classify."""

    top: Annotated[int, Field(ge=1, le=MAX_TOP, description="How many labels; 5 where it is not given.")] | None = None
