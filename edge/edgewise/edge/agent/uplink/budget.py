"""How many bytes telemetry, logs and events may still take today."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

from edgewise.core.sqlite import Database
from edgewise.edge.agent.moments import Moment, Moments
from edgewise.edge.agent.uplink.rows import RowClass

_DAY_S = 86_400.0
_ALERTS_SHARE = 0.1  # of the day's bytes, which telemetry and logs leave to alerts
_NAME = "day"


class Budget:
    """Days are periods of 24 hours from the first byte on: no clock needs to be right. Results are free.

    Attributes:
        daily_bytes: None for no limit.
    """

    def __init__(self, database: Database, moments: Moments, daily_bytes: int | None) -> None:
        self._database = database
        self._moments = moments
        self.daily_bytes = daily_bytes
        self._began: Moment | None = None
        self._spent = 0

    async def load(self) -> None:
        """Go on with the day that an earlier start began."""
        query = "SELECT value FROM facts WHERE name = ?"
        row = await self._database.run(lambda connection: connection.execute(query, (_NAME,)).fetchone())
        if row is not None:
            told = json.loads(row["value"])
            self._began, self._spent = Moment(**told["began"]), int(told["spent"])

    async def save(self) -> None:
        if self._began is None:
            return
        told = json.dumps({"began": asdict(self._began), "spent": self._spent})

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (_NAME, told))

        await self._database.run(work)

    @property
    def spent(self) -> int:
        """Bytes of the day so far."""
        self._turn_day()
        return self._spent

    def allows(self, kind: RowClass, size: int) -> bool:
        """Whether a row of so many bytes may be sent now."""
        if self.daily_bytes is None or kind == "result":
            return True
        share = 1.0 if kind == "alert" else 1.0 - _ALERTS_SHARE
        return self.spent + size <= self.daily_bytes * share

    def spend(self, kind: RowClass, size: int) -> None:
        """It was sent."""
        if kind == "result":
            return
        self._turn_day()
        if self._began is None:
            self._began = self._moments.now()
        self._spent += size

    def _turn_day(self) -> None:
        if self._began is not None and self._moments.age_s(self._began) >= _DAY_S:
            self._began, self._spent = None, 0
