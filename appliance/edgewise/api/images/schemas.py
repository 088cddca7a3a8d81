"""The bodies of /v1/images/generations and /v1/images/edits as OpenAI's document has them, plus our extensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.fields import Refusal, empty, never, one_of
from edgewise.api.keep_alive import KeepAlive
from edgewise.api.schemas import MAX_TIMEOUT_S
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.seeds import MAX_SEED

MAX_PICTURES = 10
MAX_PARTIAL = 3
MAX_PROMPT = 32_000
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")

IGNORED = frozenset({"moderation", "safety_identifier", "user"})

REFUSED: Mapping[str, Refusal] = {
    "background": Refusal("pictures here have no transparent parts", one_of("auto", "opaque")),
    "complexity": Refusal("no model here plans a picture beforehand", never),
    "frame_count": Refusal("pictures here do not move", never),
    "frame_duration_ms": Refusal("pictures here do not move", never),
    "input_fidelity": Refusal("say with 'strength' how much of the picture is replaced", one_of("low")),
    "quality": Refusal("say with 'steps' how long to draw", one_of("auto", "standard")),
    "response_format": Refusal(
        "nothing is kept here that a link could lead to: the answer carries the picture as 'b64_json'",
        one_of("b64_json"),
    ),
    "style": Refusal("describe it in the prompt", never),
    "svg": Refusal("pictures here are made of pixels", empty),
}

EXTENSIONS = ("guidance", "keep_alive", "negative_prompt", "seed", "step_cache", "steps", "timeout")


class ImageBody(BaseModel):
    """POST /v1/images/generations. `null` means "not given" everywhere."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_PICTURES)] | None = None
    size: str | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Field(ge=0, le=MAX_PARTIAL)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None
    step_cache: Annotated[float, Field(ge=0, le=1)] | None = None
    guidance: Annotated[float, Field(ge=1)] | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None
    background: Any = None
    complexity: Any = None
    frame_count: Any = None
    frame_duration_ms: Any = None
    moderation: Any = None
    quality: Any = None
    response_format: Any = None
    safety_identifier: Any = None
    style: Any = None
    svg: Any = None
    user: Any = None


class EditBody(ImageBody):
    """The fields of POST /v1/images/edits besides its files."""

    input_fidelity: Any = None
    strength: Annotated[float, Field(gt=0, le=1)] | None = None


def check(body: ImageBody) -> tuple[str, ...]:
    """Refuse what would change the picture and is not supported; return what is ignored, for the receipt.

    Raises:
        InvalidRequest: Naming the field.
    """
    for name, refusal in REFUSED.items():
        value = getattr(body, name, None)
        if value is not None and not refusal.harmless(value):
            raise UnsupportedField(f"'{name}' is not supported here: {refusal.why}.", param=name)
    if body.partial_images and not body.stream:
        raise InvalidRequest("'partial_images' needs 'stream': true.", param="partial_images")
    if body.output_compression is not None and body.output_format not in ("jpeg", "webp"):
        raise InvalidRequest(
            "'output_compression' is for 'output_format' jpeg and webp; PNG keeps every pixel.",
            param="output_compression",
        )
    return tuple(sorted(name for name in IGNORED if getattr(body, name) is not None))


def size_of(text: str | None) -> tuple[int | None, int | None]:
    """Width and height; None for the model's best. Raises `InvalidRequest` for anything that is no size."""
    if text is None or text == "auto":
        return None, None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"'size' is '{text[:40]}': it must be WIDTHxHEIGHT in pixels, as \"512x512\", or \"auto\".", param="size"
        )
    return int(match[1]), int(match[2])
