"""Our extensions of how tokens are drawn, for the APIs that have no words of their own for them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.keep_alive import KeepAlive
from edgewise.api.parse import SMALLEST_TOP_P
from edgewise.api.schemas import MAX_TIMEOUT_S, MaxImagePixels
from edgewise.pipeline.seeds import MAX_SEED
from edgewise.pipeline.task import Sampling


class DrawingBody(BaseModel):
    """Base of a body: strict types, no unknown fields, and the extensions."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    model: str
    stream: bool | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None
    max_image_pixels: MaxImagePixels = None
    pan_and_scan: bool | None = None


DRAWING = (
    "ignore_eos",
    "keep_alive",
    "max_image_pixels",
    "min_p",
    "min_tokens",
    "pan_and_scan",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "timeout",
    "top_k",
)
"""The extensions' names, for the documents; Anthropic's form has `top_k` itself."""


def drawing(
    body: DrawingBody, *, max_tokens: int | None, temperature: float | None, top_logprobs: int | None = None
) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=body.top_k,
        top_p=None if body.top_p is None else max(body.top_p, SMALLEST_TOP_P),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        top_logprobs=top_logprobs,
    )
