"""Hardware whose readings a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgewise.edge.hardware.protocol import Readings


class ScriptedHardware:
    """As `edge.hardware.protocol.Hardware`; `set` takes fields of `Readings`."""

    def __init__(self, **fields: Any) -> None:
        self.readings = Readings(memory_used=3, memory_total=8, disk_free=100)
        self.asked = 0
        self.set(**fields)

    def set(self, **fields: Any) -> None:
        self.readings = replace(self.readings, **fields)

    def describe(self) -> Mapping[str, Any]:
        return {"accelerators": []}

    def read(self) -> Readings:
        self.asked += 1
        return self.readings
