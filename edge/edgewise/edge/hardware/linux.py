"""A machine's temperature and power supply, as Linux tells them in /sys; None where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgewise.edge.hardware.kernel import degrees_of, number_of, text_of

_PASSIVE = frozenset({"passive", "hot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxState:
    """`hottest_c`: degrees Celsius of the hottest thermal zone; `margin_c`: what the zone that is nearest to slowing the machine
    down has left; `on_battery` and `charge` (0 to 1) of the power supply; `profile` as the platform names its power mode."""

    hottest_c: float | None = None
    margin_c: float | None = None
    on_battery: bool | None = None
    charge: float | None = None
    profile: str | None = None


def read_linux(root: Path) -> LinuxState:
    """Reads some dozens of small files; `root` is /sys."""
    zones = sorted((root / "class/thermal").glob("thermal_zone*"))
    temperatures = {zone: one for zone in zones if (one := degrees_of(zone / "temp")) is not None}
    limits = {zone: limit for zone in zones if (limit := min(_limits(zone), default=None)) is not None}
    margins = [limits[zone] - temperature for zone, temperature in temperatures.items() if zone in limits]
    supplies = sorted((root / "class/power_supply").glob("*"))
    batteries = [one for one in supplies if text_of(one / "type") == "Battery"]
    mains = [text_of(one / "online") for one in supplies if text_of(one / "type") in ("Mains", "USB", "USB_C")]
    charges = [number_of(one / "capacity") for one in batteries]
    return LinuxState(
        hottest_c=max(temperatures.values(), default=None),
        margin_c=min(margins, default=None),
        on_battery=None if not supplies else bool(batteries) and "1" not in mains,
        charge=min((charge / 100.0 for charge in charges if charge is not None), default=None),
        profile=text_of(root / "firmware/acpi/platform_profile"),
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
