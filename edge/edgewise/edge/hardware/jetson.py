"""Jetson boards from the kernel's own files: power rails, power mode, over-current events and the load of the GPU.

Source: NVIDIA's Jetson Linux Developer Guide, "Platform Power and Performance" (rails of the INA3221 and INA238 in hwmon,
nvpmodel, `soctherm_oc`).
Temperatures and the points where the board slows down are thermal zones, which `Machine` reads as on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewise.edge.hardware.kernel import number_of, text_of
from edgewise.edge.hardware.protocol import Sensed

_WHOLE = ("VIN", "VDD_IN", "POM_5V_IN")
"""Rails that all others hang on: where one is measured, it is the board's power."""
_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+?)\s*>")


class JetsonFiles:
    """`Sensors` of a board; `root` is that of the file system."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._events: float | None = None

    def accelerators(self) -> list[Mapping[str, Any]]:
        model = text_of(self._root / "proc/device-tree/model") or "Jetson"
        return [{"name": f"{model} GPU", "kind": "cuda", "unified": True}]

    def power_modes(self) -> list[str]:
        return list(self._modes().values())

    def read(self) -> Sensed:
        gpu = next(iter(sorted((self._root / "sys/class/devfreq").glob("*gpu*"))), None)
        load = None if gpu is None else number_of(gpu / "device/load")
        hertz = None if gpu is None else number_of(gpu / "cur_freq")
        throttled = self._over_current()
        return Sensed(
            power_w=self._watts(),
            throttled=throttled,
            reasons=("over-current",) if throttled else (),
            power_mode=self._mode(),
            gpu_utilization=None if load is None else load / 1000.0,
            gpu_clock_mhz=None if hertz is None else hertz / 1e6,
        )

    def _watts(self) -> float | None:
        """Of the rail that all hang on, else of all rails together; unknown if one of them does not answer."""
        rails: dict[str, float | None] = {}
        for chip in sorted((self._root / "sys/class/hwmon").glob("hwmon*")):
            kind = text_of(chip / "name") or ""
            if kind.startswith("ina238"):
                microwatts = number_of(chip / "power1_input")
                rails["VIN"] = None if microwatts is None else microwatts / 1e6
            elif kind.startswith("ina3221"):
                rails |= _ina3221(chip)
        for name in _WHOLE:
            if rails.get(name) is not None:
                return rails[name]
        known = [watts for watts in rails.values() if watts is not None]
        return round(sum(known), 3) if rails and len(known) == len(rails) else None

    def _over_current(self) -> bool | None:
        """Whether the board has counted an event that slows it down since it was asked before; None where it counts none."""
        counters = [
            path
            for chip in (self._root / "sys/class/hwmon").glob("hwmon*")
            for path in chip.glob("oc*_event_cnt")
            if text_of(path.with_name(path.name.replace("_event_cnt", "_throt_en"))) == "1"
        ]
        counts = [count for path in counters if (count := number_of(path)) is not None]
        if not counts:
            return None
        before, self._events = self._events, sum(counts)
        return before is not None and self._events > before

    def _mode(self) -> str | None:
        """nvpmodel notes the mode that it has set as "pmode:0002"."""
        status = text_of(self._root / "var/lib/nvpmodel/status") or ""
        number = re.search(r"pmode:(\d+)", status)
        return None if number is None else self._modes().get(int(number[1]), f"mode {int(number[1])}")

    def _modes(self) -> dict[int, str]:
        found = _MODE.findall(text_of(self._root / "etc/nvpmodel.conf") or "")
        return {int(number): name for number, name in found}


def _ina3221(chip: Path) -> dict[str, float | None]:
    """Watts of the channels that are connected, by the rail's name. The seventh is a sum of voltages, not a rail."""
    rails: dict[str, float | None] = {}
    for channel in (1, 2, 3):
        name = text_of(chip / f"in{channel}_label")
        if not name or name == "NC":
            continue
        millivolts, milliamperes = number_of(chip / f"in{channel}_input"), number_of(chip / f"curr{channel}_input")
        known = millivolts is not None and milliamperes is not None
        rails[name] = millivolts * milliamperes / 1e6 if known else None  # type: ignore[operator]
    return rails
