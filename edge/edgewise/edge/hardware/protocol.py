"""What the machine tells of itself, whatever it is read with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensed:
    """What one source of sensors tells. None is unknown, and stays so: nothing is guessed.

    Attributes:
        temperature_c: The hottest sensor, in degrees Celsius.
        margin_c: Degrees left until the first part slows itself down; below 0 it does.
        power_w: Watts drawn now.
        throttled: The hardware slows itself down, for heat or for want of current.
        reasons: Why its clocks are held down, in the words of the source; some are harmless ("power cap").
        power_mode: As the platform names it.
        gpu_utilization: Share of the time in which the accelerator worked lately, 0 to 1.
        gpu_memory_used, gpu_memory_total: Bytes; of an accelerator that shares the machine's memory what it takes of that.
        gpu_clock_mhz: Of its cores.
    """

    temperature_c: float | None = None
    margin_c: float | None = None
    power_w: float | None = None
    throttled: bool | None = None
    reasons: tuple[str, ...] = ()
    power_mode: str | None = None
    gpu_utilization: float | None = None
    gpu_memory_used: int | None = None
    gpu_memory_total: int | None = None
    gpu_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings(Sensed):
    """One look at the whole machine.

    Attributes:
        memory_used, memory_total: Bytes; of unified memory where the accelerator shares it.
        disk_free: Bytes of the file system that holds the state directory.
        on_battery: Whether it runs on its battery; None where the platform has no power supply that tells.
        charge: Of the battery that is emptiest, 0 to 1.
        saving: Why energy is to be saved: a battery that is nearly empty, a saving power profile; None where it is not.
    """

    memory_used: int
    memory_total: int
    disk_free: int
    on_battery: bool | None = None
    charge: float | None = None
    saving: str | None = None


class Sensors(Protocol):
    """One source: a kind of card, or of board. It never raises for a sensor that is not there."""

    def accelerators(self) -> list[Mapping[str, Any]]:
        """Name, memory and so on of each, for `Birth.hardware`."""

    def power_modes(self) -> list[str]:
        """Names of the modes that the platform can be set to; empty where it has none."""

    def read(self) -> Sensed: ...


class Hardware(Protocol):
    """Quick enough for a thread that is asked every second; never raises for a sensor that is not there."""

    def describe(self) -> Mapping[str, Any]:
        """What `Birth.hardware` says: family, cpu, cores, memory_bytes, accelerators, os, power modes."""

    def read(self) -> Readings: ...
