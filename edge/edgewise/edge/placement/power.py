"""The device's temperature and power supply, as Linux tells them in /sys; None where it does not."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.clock import Clock
from edgewise.edge.hardware.kernel import degrees_of, number_of, text_of
from edgewise.edge.placement.protocol import PowerState

_READ_EVERY_S = 5.0
_PASSIVE = frozenset({"passive", "hot"})


class LinuxPower:
    """`placement.protocol.Power`; reads at most every `every_s` seconds. `root` is /sys."""

    def __init__(self, clock: Clock, root: Path = Path("/sys"), *, every_s: float = _READ_EVERY_S) -> None:
        self._clock = clock
        self._root = root
        self._every_s = every_s
        self._state = PowerState()
        self._read_at: float | None = None

    def read(self) -> PowerState:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= self._every_s:
            self._read_at = now
            self._state = self._look()
        return self._state

    def _look(self) -> PowerState:
        zones = sorted((self._root / "class/thermal").glob("thermal_zone*"))
        temperatures = {zone: one for zone in zones if (one := degrees_of(zone / "temp")) is not None}
        limits = {zone: limit for zone in zones if (limit := min(_limits(zone), default=None)) is not None}
        margins = [limits[zone] - temperature for zone, temperature in temperatures.items() if zone in limits]
        supplies = sorted((self._root / "class/power_supply").glob("*"))
        batteries = [one for one in supplies if text_of(one / "type") == "Battery"]
        mains = [text_of(one / "online") for one in supplies if text_of(one / "type") in ("Mains", "USB", "USB_C")]
        charges = [number_of(one / "capacity") for one in batteries]
        return PowerState(
            hottest_c=max(temperatures.values(), default=None),
            throttle_c=min(limits.values(), default=None),
            margin_c=min(margins, default=None),
            on_battery=None if not supplies else bool(batteries) and "1" not in mains,
            charge=min((charge / 100.0 for charge in charges if charge is not None), default=None),
            profile=text_of(self._root / "firmware/acpi/platform_profile"),
        )


def _limits(zone: Path) -> list[float]:
    """Temperatures at which a zone slows the machine down."""
    types = sorted(zone.glob("trip_point_*_type"))
    found = [
        degrees_of(path.with_name(path.name.removesuffix("_type") + "_temp"))
        for path in types
        if text_of(path) in _PASSIVE
    ]
    return [one for one in found if one is not None and one > 0]
