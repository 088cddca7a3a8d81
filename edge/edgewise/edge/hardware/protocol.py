"""What the machine tells of itself, whatever it is read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One look at the machine. None is unknown, and stays so: nothing is guessed.

    Attributes:
        memory_used, memory_total: Bytes; of unified memory where the accelerator shares it.
        disk_free: Bytes of the file system that holds the state directory.
        temperature_c: The hottest sensor, in degrees Celsius.
        power_w: Watts drawn now.
        throttled: The hardware has slowed itself down.
    """

    memory_used: int
    memory_total: int
    disk_free: int
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: bool | None = None


class Hardware(Protocol):
    """Quick enough for a thread that is asked every few seconds; never raises for a sensor that is not there."""

    def describe(self) -> Mapping[str, Any]:
        """What `Birth.hardware` says: family, cpu, cores, memory_bytes, accelerators, os, power modes."""

    def read(self) -> Readings: ...
