"""What the picture engine asks of a model: one denoising step at a time, for several pictures at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3], RGB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTraits:
    """What a model can draw; see `engine.pictures.request.PictureInfo` for the meanings."""

    grid: int
    sizes: tuple[int, int]
    best: tuple[int, int]
    steps: int
    guidance: float
    max_steps: int = 200
    edits: bool = False
    negative: bool = True
    latent_bytes_per_pixel: float = 6.0
    """Of exported latents (float16) for one pixel of the picture; 6 for a model that works on pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """One picture as the model sees it: every value is set, and was checked against its traits (`engine.pictures.brief`).

    Attributes:
        image: Picture to begin with, already in the asked size; None draws from noise.
        mask: [height, width], 0 keeps and 255 draws anew; None draws all anew.
        start: First of the `steps` that is computed; above 0 with an `image`.
        cache: Of the step cache (`step_cache`): relative change of the conditions in which steps are predicted from those before
            instead of computed; 0 computes all.
    """

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    start: int = 0
    image: Pixels | None = None
    mask: npt.NDArray[np.uint8] | None = None
    cache: float = 0.0


@dataclass(slots=True)
class Canvas:
    """The state of one picture between steps. The engine moves it around; only its model looks inside.

    Attributes:
        step: Steps that are done, `brief.start` at the beginning.
        latents: [channels, height, width].
        memory: What the model keeps beside it: embeddings of the prompts, schedule, state of a multi-step solver.
        predicted: Of the steps done, those that were predicted (`Brief.cache`).
    """

    brief: Brief
    step: int
    latents: torch.Tensor
    memory: Any = None
    predicted: int = 0

    @property
    def done(self) -> bool:
        return self.step >= self.brief.steps


class PictureModel(Protocol):
    """A loaded model. Not thread-safe; every method runs on the engine's thread, under `torch.inference_mode`.

    Everything random comes from the counter-based generator of `kernels.philox`, keyed on seed and position, so that a seed gives
    one picture, whatever is drawn beside it and on whichever device.
    """

    @property
    def traits(self) -> PictureTraits: ...

    @property
    def numeric_class(self) -> str: ...

    def begin(self, brief: Brief) -> Canvas:
        """Encode the prompts and draw the noise."""

    def batch_key(self, canvas: Canvas) -> object:
        """Canvases with equal keys can take one step together: same shape, guided or not; their places may differ."""

    def step(self, canvases: Sequence[Canvas]) -> Iterator[None]:
        """One denoising step of all of them, changing them in place. Yields at places where the device may be given to more
        urgent work (between layers); a step is abandoned by closing the iterator, and the canvases are as before it."""

    def decode(self, canvas: Canvas) -> Pixels:
        """The picture as it stands; of an unfinished one the model's present guess (a preview)."""

    def export(self, canvas: Canvas) -> bytes:
        """Latents as safetensors bytes."""

    def restore(self, latents: bytes, width: int, height: int) -> Pixels:
        """The picture of exported latents. Raises `InvalidRequest` for bytes that are not of this model and size."""
