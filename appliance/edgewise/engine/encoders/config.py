"""How an encoder's process is to be built. Sent to it at start, as `engine.config.EngineConfig` is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgewise.models.files import ModelFiles

ENCODER_FACTORY = "edgewise.engine.encoders.build:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Everything that an encoder's process needs to know; what is not said here is as in `EngineConfig`.

    Attributes:
        role: What the model is for, as its manifest says: which code reads it (`engine.encoders.build.LOADERS`).
        needs_bytes: What the model takes at most, booked before it is loaded.
        max_running: Requests that are computed together.
        options: What the role's loader takes besides files and threads, by name.
    """

    model: ModelFiles
    role: str
    needs_bytes: int
    device: str = "cpu"
    memory_fraction: float = 0.8
    memory_budget_bytes: int | None = None
    max_running: int = 16
    max_waiting: int = 256
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
