"""What a caller asks of a picture engine and what comes back. Plain frozen data; crosses the process border unchanged.

A picture is a pure function of (model digest, numeric class, parameters, seed): a request that is begun again, here or
elsewhere, gives the same picture within the rounding of the numeric class.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from edgewise.core.priority import Priority
from edgewise.engine.api import EngineState
from edgewise.engine.request import LinkUse, Segment

DiffuseFinish = Literal["done", "cancelled", "error"]
PictureForm = Literal["png", "latents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffuseParams:
    """One picture. `None` takes what the model's makers recommend.

    Attributes:
        prompt: What is to be seen.
        negative_prompt: What is not; "" for nothing.
        width, height: Pixels, on the model's grid.
        steps: Denoising steps.
        guidance: Classifier-free guidance scale (Ho & Salimans 2022); 1 is off.
        seed: Of the initial noise; 0 <= seed < 2**64.
        image: Encoded picture to begin with (edits); None draws from noise.
        mask: Encoded picture whose transparent or white pixels are drawn anew; None for all.
        strength: How much of `image` is replaced, (0, 1].
        cache: Predict steps instead of computing them (`models.diffusion.step_cache`): the relative change of the network's
            conditions that may add up in between, at most 1; 0 computes all.
        previews: How many previews are wanted on the way.
        latents: Hand out latents instead of a finished picture.
    """

    prompt: str
    negative_prompt: str = ""
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int = 0
    image: bytes | None = None
    mask: bytes | None = None
    strength: float = 0.8
    cache: float = 0.0
    previews: int = 0
    latents: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffuseRequest:
    """One picture to draw; the other attributes as in `engine.request.GenerateRequest`.

    Attributes:
        decode: Latents that the same model exported for `params`, here or elsewhere: only the rest is done, which is to make a
            picture of them. It takes no step.
    """

    id: str
    params: DiffuseParams
    decode: bytes | None = None
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffuseStats:
    """Facts about a picture. Times in seconds on the engine's monotonic clock.

    `computed_steps` are those that were not predicted by the step cache; `retried` says that half precision overflowed and the
    picture was drawn again in a wider type. `link` is set where it was drawn elsewhere; then `came_as` says as what it crossed
    the link, and `came_bytes` how long that was: latents are decoded here.
    """

    queued_s: float
    denoise_s: float
    decode_s: float
    steps: int
    computed_steps: int
    width: int
    height: int
    guidance: float
    retried: bool = False
    preemptions: int = 0
    restarts: int = 0
    link: LinkUse | None = None
    segments: tuple[Segment, ...] = ()
    came_as: PictureForm | None = None
    came_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffuseChunk:
    """Progress of one picture: `offset` steps of `total` were done before this chunk's `count`.

    The last chunk, and only it, has `finish` set. With "done", `picture` is an encoded PNG, or `latents` are safetensors bytes
    that a request with `decode` of the same model turns into it.
    """

    request_id: str
    offset: int
    count: int
    total: int
    preview: bytes | None = None
    picture: bytes | None = None
    latents: bytes | None = None
    finish: DiffuseFinish | None = None
    stats: DiffuseStats | None = None
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureInfo:
    """What a picture engine is, as reported when it is ready.

    Attributes:
        numeric_class: As of `engine.api.EngineInfo`.
        grid: Width and height are multiples of it, in pixels.
        sizes: Smallest and largest width and height.
        sizes_best: The size that the model was trained for, (width, height).
        steps, guidance: What is used where a request names none.
        step_s: Measured seconds of one step at the best size, batch of one.
        latent_bytes_per_pixel: Bytes of exported latents for one pixel of the picture.
    """

    model: str
    digest: str
    numeric_class: str
    device: str
    dtype: str
    pid: int
    load_s: float
    grid: int
    sizes: tuple[int, int]
    sizes_best: tuple[int, int]
    steps: int
    guidance: float
    max_steps: int
    edits: bool
    negative: bool
    step_s: float
    latent_bytes_per_pixel: float


class PictureStream(Protocol):
    """The answer to one submitted request; an async iterator of `DiffuseChunk` that ends after the chunk with `finish` set."""

    def __aiter__(self) -> AsyncIterator[DiffuseChunk]: ...

    async def __anext__(self) -> DiffuseChunk: ...

    async def aclose(self) -> None:
        """Cancel if still running: it stops before the next step. Safe to call twice."""


class PictureEngine(Protocol):
    """Submit and observe, as `engine.api.Engine` does for tokens. Implemented by the client of a picture process and, for the
    cloud's, by `edge.offload`."""

    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> PictureInfo | None:
        """None until it has been ready once."""

    async def submit(self, request: DiffuseRequest) -> PictureStream:
        """Queue a request; returns once it was accepted. Raises as `engine.api.Engine.submit` does."""
