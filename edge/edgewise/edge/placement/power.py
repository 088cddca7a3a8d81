"""The device's temperature and power supply, as Linux tells them in /sys; None where it does not."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.clock import Clock
from edgewise.edge.placement.protocol import PowerState

_READ_EVERY_S = 5.0
_PASSIVE = frozenset({"passive", "hot"})


class LinuxPower:
    """`placement.protocol.Power`; reads at most every five seconds. `root` is /sys."""

    def __init__(self, clock: Clock, root: Path = Path("/sys")) -> None:
        self._clock = clock
        self._root = root
        self._state = PowerState()
        self._read_at: float | None = None

    def read(self) -> PowerState:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= _READ_EVERY_S:
            self._read_at = now
            self._state = self._look()
        return self._state

    def _look(self) -> PowerState:
        zones = sorted((self._root / "class/thermal").glob("thermal_zone*"))
        temperatures = [one for zone in zones if (one := _degrees(zone / "temp")) is not None]
        limits = [limit for zone in zones for limit in _limits(zone)]
        supplies = sorted((self._root / "class/power_supply").glob("*"))
        batteries = [one for one in supplies if _text(one / "type") == "Battery"]
        mains = [_text(one / "online") for one in supplies if _text(one / "type") in ("Mains", "USB", "USB_C")]
        charges = [_number(one / "capacity") for one in batteries]
        return PowerState(
            hottest_c=max(temperatures, default=None),
            throttle_c=min(limits, default=None),
            on_battery=None if not supplies else bool(batteries) and "1" not in mains,
            charge=min((charge / 100.0 for charge in charges if charge is not None), default=None),
            profile=_text(self._root / "firmware/acpi/platform_profile"),
        )


def _limits(zone: Path) -> list[float]:
    """Temperatures at which a zone slows the machine down."""
    types = sorted(zone.glob("trip_point_*_type"))
    found = [
        _degrees(path.with_name(path.name.removesuffix("_type") + "_temp")) for path in types if _text(path) in _PASSIVE
    ]
    return [one for one in found if one is not None and one > 0]


def _degrees(path: Path) -> float | None:
    value = _number(path)
    return None if value is None else value / 1000.0


def _number(path: Path) -> float | None:
    text = _text(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    """None for a file that is not there, and for one whose driver does not answer."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
