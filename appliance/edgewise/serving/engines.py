"""The client for each kind of engine process."""

from __future__ import annotations

from collections.abc import Callable

from edgewise.engine.client import EngineClient
from edgewise.engine.encoders.client import EncoderClient
from edgewise.engine.encoders.config import EncoderConfig
from edgewise.engine.events import EngineEvent
from edgewise.engine.messages import AnyConfig
from edgewise.engine.pictures.client import PictureClient
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pool.pool import ManagedEngine


def make_engine(config: AnyConfig, on_event: Callable[[EngineEvent], None]) -> ManagedEngine:
    """One that is not started yet."""
    if isinstance(config, PictureConfig):
        return PictureClient(config, on_event=on_event)
    if isinstance(config, EncoderConfig):
        return EncoderClient(config, on_event=on_event)
    return EngineClient(config, on_event=on_event)
