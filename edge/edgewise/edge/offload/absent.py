"""The engine of a model that is not on this device: it says so."""

from __future__ import annotations

from edgewise.core.errors import EngineUnavailable
from edgewise.engine.api import CacheTier, EngineState, EngineStats, MemoryReport, TokenStream
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
        raise EngineUnavailable(f"The model '{self._model}' is not on this device, and the cloud is not asked for it.")

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def memory(self) -> MemoryReport:
        return MemoryReport(budget_bytes=0, available_bytes=0)

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        del tier
        return {}
