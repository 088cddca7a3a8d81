"""Any Linux machine, by psutil (https://psutil.readthedocs.io) and what the kernel shows in /sys."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from edgewise.core.clock import Clock
from edgewise.edge.hardware.protocol import Readings
from edgewise.edge.placement.power import LinuxPower

_DEVICE_TREE = Path("/proc/device-tree/model")


class Machine:
    """`Hardware` without an accelerator of its own; power draw is not known here.

    Args:
        home: State directory, whose disk counts.
    """

    def __init__(self, home: Path, clock: Clock) -> None:
        self._home = home
        self._power = LinuxPower(clock)

    def describe(self) -> Mapping[str, Any]:
        return {
            "family": _family(),
            "cpu": _cpu(),
            "cores": os.cpu_count() or 1,
            "memory_bytes": psutil.virtual_memory().total,
            "accelerators": [],
            "os": f"{platform.system()} {platform.release()}",
            "power_modes": [],
        }

    def read(self) -> Readings:
        memory = psutil.virtual_memory()
        power = self._power.read()
        hot = power.hottest_c
        throttled = None if hot is None or power.throttle_c is None else hot >= power.throttle_c
        return Readings(
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            disk_free=shutil.disk_usage(self._home).free,
            temperature_c=hot,
            throttled=throttled,
        )


def _family() -> str:
    """The board, where the machine names one (device tree), else the architecture."""
    try:
        return _DEVICE_TREE.read_text("utf-8").rstrip("\x00")
    except (OSError, ValueError):
        return platform.machine()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
