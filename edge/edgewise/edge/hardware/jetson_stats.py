"""Jetson boards through jetson-stats (https://rnext.it/jetson_stats, extra "jetson"), where its service runs on the board."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from edgewise.core.log import get_logger
from edgewise.edge.hardware.protocol import Sensed, Sensors

log = get_logger(__name__)

_TOLD_ANEW_S = 1.0
_OFFLINE_C = -256


class JetsonStats:
    """`Sensors` of a board whose `jtop.service` runs; what it does not tell, and all once it has ended, comes from `files`.

    Args:
        jetson: A `jtop.jtop` that is connected.
        files: The kernel's own.
    """

    def __init__(self, jetson: Any, files: Sensors) -> None:
        self._jetson = jetson
        self._files = files
        self._lost = False

    def accelerators(self) -> list[Mapping[str, Any]]:
        if self._lost:
            return self._files.accelerators()
        hardware = self._jetson.board.get("hardware", {})
        name = hardware.get("Module") or hardware.get("Model")
        if not name:
            return self._files.accelerators()
        told = {"jetpack": hardware.get("Jetpack"), "cuda_arch": hardware.get("CUDA Arch BIN")}
        return [{"name": f"{name} GPU", "kind": "cuda", "unified": True} | {k: v for k, v in told.items() if v}]

    def power_modes(self) -> list[str]:
        model = None if self._lost else self._jetson.nvpmodel
        return self._files.power_modes() if model is None else list(model.models)

    def read(self) -> Sensed:
        told = self._files.read()
        if self._lost or not self._alive():
            return told
        jetson = self._jetson
        gpu: Mapping[str, Any] = next(iter(dict(jetson.gpu).values()), {})
        load, kilohertz = gpu.get("status", {}).get("load"), gpu.get("freq", {}).get("cur")
        milliwatts = jetson.power.get("tot", {}).get("power")
        shared = dict(jetson.memory).get("RAM", {}).get("shared")
        return Sensed(
            temperature_c=_hottest(jetson.temperature),
            power_w=told.power_w if milliwatts is None else milliwatts / 1000.0,
            throttled=told.throttled,
            reasons=told.reasons,
            power_mode=told.power_mode if jetson.nvpmodel is None else str(jetson.nvpmodel.name),
            gpu_utilization=told.gpu_utilization if load is None else round(load / 100.0, 4),
            gpu_memory_used=None if shared is None else int(shared) * 1024,
            gpu_clock_mhz=told.gpu_clock_mhz if kilohertz is None else kilohertz / 1000.0,
        )

    def _alive(self) -> bool:
        """Its client raises anything that its thread met, so anything is caught: a monitor must not end what it watches."""
        try:
            alive = bool(self._jetson.ok(spin=True))
        except Exception as error:  # noqa: BLE001
            log.warning("jetson_stats_lost", reason=str(error))
            alive = False
        self._lost = not alive
        return alive


def with_jetson_stats(files: Sensors) -> Sensors:
    """`files`, with jetson-stats before them where it is installed and its service answers."""
    try:
        jtop = importlib.import_module("jtop")
    except ImportError:
        return files
    try:
        jetson = jtop.jtop(interval=_TOLD_ANEW_S)
        jetson.start()
    except (jtop.JtopException, OSError) as error:
        log.warning("jetson_stats_not_used", reason=str(error))
        return files
    return JetsonStats(jetson, files)


def _hottest(sensors: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Disks are no part of the board."""
    return max(
        (
            float(one["temp"])
            for name, one in sensors.items()
            if one.get("online", True) and one["temp"] > _OFFLINE_C and not name.startswith("nvme")
        ),
        default=None,
    )
