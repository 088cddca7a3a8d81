"""NVIDIA cards through NVML (nvidia-ml-py, https://docs.nvidia.com/deploy/nvml-api/). What a card or its driver does not tell is
unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pynvml

from edgewise.core.log import get_logger
from edgewise.edge.hardware.machine import merged
from edgewise.edge.hardware.protocol import Sensed

log = get_logger(__name__)

_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal slowdown by software",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "thermal slowdown by hardware",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}
_HARMLESS = pynvml.nvmlClocksEventReasonSwPowerCap
"""A card at its power limit does what it was made for: any card under load reports it."""
_LIMITS = (pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)


class NvidiaCards:
    """`Sensors` of all cards of this machine. Temperatures are of the hottest one, watts and bytes of all together.

    Args:
        nvml: The module pynvml, initialized.
    """

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        count = self._ask("nvmlDeviceGetCount") or 0
        handles = (self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
        self._cards = [handle for handle in handles if handle is not None]

    def __repr__(self) -> str:
        return f"NvidiaCards({len(self._cards)})"

    def __len__(self) -> int:
        return len(self._cards)

    def accelerators(self) -> list[Mapping[str, Any]]:
        driver = self._ask("nvmlSystemGetDriverVersion")
        found: list[Mapping[str, Any]] = []
        for card in self._cards:
            memory = self._ask("nvmlDeviceGetMemoryInfo", card)
            told = {
                "name": self._ask("nvmlDeviceGetName", card) or "NVIDIA card",
                "kind": "cuda",
                "memory_bytes": None if memory is None else int(memory.total),
                "driver": driver,
            }
            found.append({name: value for name, value in told.items() if value is not None})
        return found

    def power_modes(self) -> list[str]:
        return []

    def read(self) -> Sensed:
        cards = [self._read(card) for card in self._cards]
        return replace(
            merged(cards),
            power_w=_sum([card.power_w for card in cards]),
            gpu_utilization=_mean([card.gpu_utilization for card in cards]),
            gpu_memory_used=_sum([card.gpu_memory_used for card in cards]),
            gpu_memory_total=_sum([card.gpu_memory_total for card in cards]),
            gpu_clock_mhz=max((one.gpu_clock_mhz for one in cards if one.gpu_clock_mhz is not None), default=None),
        )

    def _read(self, card: Any) -> Sensed:
        temperature = self._ask("nvmlDeviceGetTemperature", card, pynvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", card)
        memory = self._ask("nvmlDeviceGetMemoryInfo", card)
        used = self._ask("nvmlDeviceGetUtilizationRates", card)
        held = self._ask("nvmlDeviceGetCurrentClocksEventReasons", card)
        if held is None:  # a driver before 535 has the old name only
            held = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", card)
        clock = self._ask("nvmlDeviceGetClockInfo", card, pynvml.NVML_CLOCK_SM)
        reasons = [bit for bit in _REASONS if held is not None and held & bit]
        return Sensed(
            temperature_c=None if temperature is None else float(temperature),
            margin_c=self._margin(card, temperature),
            power_w=None if milliwatts is None else milliwatts / 1000.0,
            throttled=None if held is None else any(bit != _HARMLESS for bit in reasons),
            reasons=tuple(_REASONS[bit] for bit in reasons),
            gpu_utilization=None if used is None else used.gpu / 100.0,
            gpu_memory_used=None if memory is None else int(memory.used),
            gpu_memory_total=None if memory is None else int(memory.total),
            gpu_clock_mhz=None if clock is None else float(clock),
        )

    def _margin(self, card: Any, temperature: float | None) -> float | None:
        """Newer cards tell it ("T.Limit"); of others it is what is left to the lower one of two thresholds."""
        told = self._ask("nvmlDeviceGetMarginTemperature", card)
        if told is not None:
            return float(told)
        limits = [self._ask("nvmlDeviceGetTemperatureThreshold", card, limit) for limit in _LIMITS]
        known = [limit for limit in limits if limit]
        return None if temperature is None or not known else float(min(known) - temperature)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None for what this card, its driver or these bindings do not tell, and for a card that fell off the bus."""
        function = getattr(self._nvml, name, None)
        try:
            return None if function is None else function(*arguments)
        except pynvml.NVMLError:
            return None


def find_cards(nvml: Any = pynvml) -> NvidiaCards | None:
    """None without a driver or without a card."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("no_nvidia_cards", reason=str(error))
        return None
    cards = NvidiaCards(nvml)
    return cards if len(cards) else None


def _sum(values: list[Any]) -> Any:
    """Unknown if one of them is: a sum that leaves one out would be taken for the whole."""
    return None if not values or None in values else sum(values)


def _mean(values: list[float | None]) -> float | None:
    total = _sum(values)
    return None if total is None else round(total / len(values), 4)
