"""Any Linux machine, by psutil (https://psutil.readthedocs.io) and what the kernel shows in /sys, with its cards or its board."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import psutil

from edgewise.edge.hardware.kernel import text_of
from edgewise.edge.hardware.linux import LinuxState, read_linux
from edgewise.edge.hardware.protocol import Readings, Sensed, Sensors

T = TypeVar("T")

_LOW_CHARGE = 0.2
_SAVING_PROFILES = frozenset({"low-power", "quiet"})
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")  # hwmon's names of what measures processors


class Machine:
    """`Hardware` of a host and what is in it.

    Args:
        home: State directory, whose disk counts.
        sensors: Of its accelerators; of those that know the same value the first one counts, for heat the worst.
        root: Of the file system.
    """

    def __init__(self, home: Path, sensors: Sequence[Sensors] = (), *, root: Path = Path("/")) -> None:
        self._home = home
        self._sensors = tuple(sensors)
        self._root = root

    def __repr__(self) -> str:
        return f"Machine({', '.join(type(one).__name__ for one in self._sensors)})"

    def describe(self) -> Mapping[str, Any]:
        return {
            "family": text_of(self._root / "proc/device-tree/model") or platform.machine(),
            "cpu": self._cpu(),
            "cores": os.cpu_count() or 1,
            "memory_bytes": psutil.virtual_memory().total,
            "accelerators": _first(one.accelerators() for one in self._sensors) or [],
            "os": f"{platform.system()} {platform.release()}",
            "power_modes": _first(one.power_modes() for one in self._sensors) or [],
        }

    def read(self) -> Readings:
        memory = psutil.virtual_memory()
        linux = read_linux(self._root / "sys")
        sensed = merged([*(one.read() for one in self._sensors), _host(linux)])
        return Readings(
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            disk_free=shutil.disk_usage(self._home).free,
            on_battery=linux.on_battery,
            charge=linux.charge,
            saving=_saving(linux),
            **asdict(sensed),
        )

    def _cpu(self) -> str:
        lines = (text_of(self._root / "proc/cpuinfo") or "").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.machine()


def merged(sources: Sequence[Sensed]) -> Sensed:
    """What several sources tell of one machine: the worst of heat, else of the first one that knows."""
    flags = [one.throttled for one in sources if one.throttled is not None]
    return Sensed(
        temperature_c=max((one.temperature_c for one in sources if one.temperature_c is not None), default=None),
        margin_c=min((one.margin_c for one in sources if one.margin_c is not None), default=None),
        power_w=_first(one.power_w for one in sources),
        throttled=any(flags) if flags else None,
        reasons=tuple(dict.fromkeys(reason for one in sources for reason in one.reasons)),
        power_mode=_first(one.power_mode for one in sources),
        gpu_utilization=_first(one.gpu_utilization for one in sources),
        gpu_memory_used=_first(one.gpu_memory_used for one in sources),
        gpu_memory_total=_first(one.gpu_memory_total for one in sources),
        gpu_clock_mhz=_first(one.gpu_clock_mhz for one in sources),
    )


def _first(values: Iterable[T | None]) -> T | None:
    """The first that is known and not empty; a 0 is known."""
    return next((value for value in values if value is not None and value != []), None)


def _host(linux: LinuxState) -> Sensed:
    """Of thermal zones; of the processor's own sensor where the kernel makes no zone of it."""
    hottest, margin = linux.hottest_c, linux.margin_c
    if hottest is None:
        hottest, margin = _chips()
    return Sensed(
        temperature_c=hottest,
        margin_c=margin,
        throttled=None if margin is None else margin <= 0,
        reasons=("thermal zone",) if margin is not None and margin <= 0 else (),
        power_mode=linux.profile,
    )


def _chips() -> tuple[float | None, float | None]:
    """Hottest processor sensor, and what is left to the least limit that one has."""
    told = psutil.sensors_temperatures()
    sensors = [one for chip in _CPU_CHIPS for one in told.get(chip, ())]
    margins = [one.high - one.current for one in sensors if one.high]
    return max((one.current for one in sensors), default=None), min(margins, default=None)


def _saving(linux: LinuxState) -> str | None:
    if linux.profile in _SAVING_PROFILES:
        return f"the power profile is {linux.profile}"
    if linux.on_battery and linux.charge is not None and linux.charge < _LOW_CHARGE:
        return f"the battery is at {100 * linux.charge:.0f} %"
    return None
