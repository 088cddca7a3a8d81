"""NVML that replays what a fixture says of each card; what a fixture does not name is "not supported"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml


class FakeNvml:
    """As the module pynvml, for `edge.hardware.nvidia`. With `cards` None there is no driver."""

    def __init__(self, cards: Sequence[Mapping[Any, Any]] | None) -> None:
        self.cards = cards

    def nvmlInit(self) -> None:  # noqa: N802
        if self.cards is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards or ())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda card, *arguments: self._replay(name, card, arguments)

    def _replay(self, name: str, card: int, arguments: Sequence[Any]) -> Any:
        assert self.cards is not None
        told = self.cards[card]
        value = told.get(name, told.get((name, *arguments)))
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if name == "nvmlDeviceGetMemoryInfo":
            return SimpleNamespace(used=value[0], total=value[1])
        if name == "nvmlDeviceGetUtilizationRates":
            return SimpleNamespace(gpu=value)
        return value
