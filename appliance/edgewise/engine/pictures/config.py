"""How a picture engine is to be built. Sent to the engine process at start, as `engine.config.EngineConfig` is."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.engine.config import DtypeName
from edgewise.models.files import ModelFiles

PICTURE_FACTORY = "edgewise.engine.pictures.build:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureConfig:
    """Everything that a picture engine's process needs to know; what is not said here is as in `EngineConfig`.

    Attributes:
        max_running: Pictures that are being drawn, of all shapes together.
        max_batch: Pictures that take one step together.
        max_waiting: Pictures in the queue before 429.
        offload: Keep the parts of a model that are not at work in host memory (diffusers models on a GPU).
        turns: File in which engine processes take turns on one device (`engine.turns`); None runs without regard to others.
    """

    model: ModelFiles
    device: str = "auto"
    dtype: DtypeName = "auto"
    memory_fraction: float = 0.8
    memory_budget_bytes: int | None = None
    max_running: int = 8
    max_batch: int = 4
    max_waiting: int = 64
    threads: int | None = None
    ageing_s: float = 60.0
    offload: bool = False
    turns: str | None = None
