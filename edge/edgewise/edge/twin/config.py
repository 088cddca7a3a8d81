"""`config`: settings by their dotted names, below what is set at the device itself; most take effect at the next start.

New values are on trial until the service has answered a token with them (`twin.trial`). What file, environment and flags of the
device say stays in force beside them, and is reported as local edits.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.core.clock import Clock, plausible
from edgewise.core.errors import ConfigError
from edgewise.core.settings import LoadedSettings, with_fleet
from edgewise.core.settings_overlay import ORIGIN, Overlay, Values, check_keys, read_overlay, write_overlay
from edgewise.edge.twin.shadow import Applied, Document, Report, Shown
from edgewise.wire.fleet import LocalEdit, Shadow

LIVE = frozenset({"log.level", "agent.telemetry_s"})
"""Settings that take effect at once."""
_SECRET = frozenset({"cloud.key"})
_MAX_EDITS = 1000


class ConfigPart:
    """Args:
    loaded: What the service was started with.
    live: Called with the settings to be in force, for those of `LIVE`.
    restart: Called when a start is needed: drains and restarts if the policy lets it, and says whether it does.
    """

    name: Shadow = "config"

    def __init__(
        self,
        loaded: LoadedSettings,
        clock: Clock,
        *,
        live: Callable[[LoadedSettings], None],
        restart: Callable[[], bool],
    ) -> None:
        self._loaded = loaded
        self._clock = clock
        self._live = live
        self._restart = restart
        self._home = loaded.settings.home
        self.proven = False
        """The service has answered since it was started."""

    def check(self, document: Document) -> None:
        check_keys(document)
        with_fleet(self._loaded, document)

    async def apply(self, gen: int, document: Document, report: Report) -> Applied:
        del report
        self.check(document)
        overlay = read_overlay(self._home)
        if overlay.failed == gen:
            raise ConfigError(f"The service did not answer with these settings, and went back: {overlay.why}")
        wanted = with_fleet(self._loaded, document)
        waiting = self._differing(wanted)
        values = Values(gen=gen, values=dict(document))
        if overlay.trial != values and overlay.good != values:
            write_overlay(self._home, Overlay(trial=values, good=overlay.good) if waiting else Overlay(good=values))
        self._live(wanted)
        if not waiting:
            if overlay.trial == values and not self.proven:
                return Applied("pending", "the service was started with them and has not answered a token yet")
            return Applied()
        soon = self._restart()
        when = "the service restarts for them now" if soon else "they take effect at the next start"
        return Applied("pending", f"{', '.join(waiting)}: {when}")

    async def show(self) -> Shown:
        """The fleet's settings with their values in force, and whatever the device has set itself."""
        rows = {key: value for key, value, _ in self._loaded.rows()}
        fleet = {key: rows.get(key) for key in read_overlay(self._home).values if key in rows}
        return Shown(fleet, tuple(self._edits(rows))[:_MAX_EDITS])

    def _differing(self, wanted: LoadedSettings) -> list[str]:
        """Settings that need a start to be as they are wanted."""
        before = {key: value for key, value, _ in self._loaded.rows()}
        return [key for key, value, _ in wanted.rows() if value != before[key] and key not in LIVE]

    def _edits(self, rows: dict[str, Any]) -> list[LocalEdit]:
        edits = []
        for key, origin in self._loaded.origins.items():
            if origin in ("default", ORIGIN):
                continue
            author, age_s = self._author(origin)
            value = "(withheld)" if key in _SECRET and rows[key] is not None else rows[key]
            edits.append(LocalEdit(path=key, value=value, author=author, age_s=age_s))
        return edits

    def _author(self, origin: str) -> tuple[str, float | None]:
        """Who set it and how long ago, as far as can be known: the owner of the file and when it was written."""
        if self._loaded.file is None or origin != str(self._loaded.file):
            return ("command line" if origin == "flag" else f"environment: {origin}")[:128], None
        try:
            stat = Path(origin).stat()
            owner = pwd.getpwuid(stat.st_uid).pw_name
        except (OSError, KeyError):
            return origin[:128], None
        now = self._clock.time()
        age_s = max(0.0, now - stat.st_mtime) if plausible(now) and plausible(stat.st_mtime) else None
        return f"{owner}, {origin}"[:128], age_s
