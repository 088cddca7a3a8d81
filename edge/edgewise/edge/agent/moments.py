"""Ages that neither a restart nor a clock that is set makes wrong.

Within one boot of the machine the monotonic clock counts on over restarts of the service (clock_gettime(2)), so an age is exact.
Over a reboot only the wall clock can tell, and a device's may be off by years: it is believed if both times are plausible, and an
age is never less than the time since the boot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgewise.core.clock import Clock, plausible
from edgewise.core.files import translate_os_errors

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = _BOOT_ID) -> str:
    """What the kernel calls this boot; it changes with each start of the machine (proc(5))."""
    with translate_os_errors("read", path):
        return path.read_text("ascii").strip()


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was. `up_s` is on the monotonic clock of the boot, `wall_s` since the epoch by the device's clock."""

    boot: str
    up_s: float
    wall_s: float


class Moments:
    """Args:
    boot: Id of this boot; read from the kernel by default.
    """

    def __init__(self, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        self.boot = read_boot_id() if boot is None else boot

    def now(self) -> Moment:
        return Moment(self.boot, self._clock.monotonic(), self._clock.time())

    def age_s(self, then: Moment) -> float:
        """Seconds since `then`, never negative."""
        now = self.now()
        if then.boot == now.boot:
            return max(0.0, now.up_s - then.up_s)
        if plausible(then.wall_s) and plausible(now.wall_s):
            return max(now.up_s, now.wall_s - then.wall_s)
        return max(0.0, now.up_s)
