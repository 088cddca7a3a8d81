"""The engines of models that are not on this device: they say so."""

from __future__ import annotations

from edgewise.core.errors import EngineUnavailable
from edgewise.engine.api import CacheTier, EngineState, EngineStats, MemoryReport, TokenStream
from edgewise.engine.pictures.request import DiffuseRequest, PictureStream
from edgewise.engine.request import GenerateRequest


class AbsentEngine:
    """Implements `engine.api.Engine`: nothing is here, and `submit` refuses."""

    info = None

    def __init__(self, model: str) -> None:
        self._model = model

    @property
    def state(self) -> EngineState:
        return "stopped"

    async def submit(self, request: GenerateRequest) -> TokenStream:
        del request
        raise _not_here(self._model)

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def memory(self) -> MemoryReport:
        return MemoryReport(budget_bytes=0, available_bytes=0)

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        del tier
        return {}


class AbsentPictures:
    """Implements `engine.pictures.request.PictureEngine` in the same way."""

    info = None

    def __init__(self, model: str) -> None:
        self._model = model

    @property
    def state(self) -> EngineState:
        return "stopped"

    async def submit(self, request: DiffuseRequest) -> PictureStream:
        del request
        raise _not_here(self._model)


def _not_here(model: str) -> EngineUnavailable:
    return EngineUnavailable(f"The model '{model}' is not on this device, and the cloud is not asked for it.")
