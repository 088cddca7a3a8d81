"""Reads the hardware once a second, off the event loop, for all who want to know: telemetry, the governor, meters of energy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from edgewise.core.clock import Clock
from edgewise.core.patience import end_task
from edgewise.core.recurring import recur
from edgewise.edge.hardware.energy import Energy
from edgewise.edge.hardware.protocol import Hardware, Readings

Told = Callable[[Readings], None]


class HardwareWatch:
    """A part of the device service, and itself `Hardware`: who asks gets the newest reading.

    Args:
        find: Finds the hardware; called once, in a thread.
        every_s: Seconds between readings.
    """

    def __init__(self, find: Callable[[], Hardware], clock: Clock, *, every_s: float = 1.0) -> None:
        self._find = find
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._found: Hardware | None = None
        self._latest: tuple[float, Readings] | None = None
        self._energy = Energy()
        self._told: list[Told] = []
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"HardwareWatch({self._found!r}, {self._energy!r})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def on_reading(self, told: Told) -> None:
        """Have each reading told to `told`, in the event loop; it must not raise."""
        self._told.append(told)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="hardware-watch")

    async def stop(self) -> None:
        await end_task(self._task)

    # --- `Hardware`, from any thread ---------------------------------------------------------------------------------------

    def describe(self) -> Mapping[str, Any]:
        with self._lock:
            return self._hardware().describe()

    def read(self) -> Readings:
        """The newest reading, or one that is made now where that is older than two turns."""
        with self._lock:
            if self._latest is not None and self._clock.monotonic() - self._latest[0] <= 2 * self._every_s:
                return self._latest[1]
            return self._look()

    # --- energy ------------------------------------------------------------------------------------------------------------

    def joules(self) -> float | None:
        """What the machine has drawn since the start, as far as its power is measured; None where it is not."""
        return self._energy.joules(self._clock.monotonic())

    # --- reading -----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """A reading that fails is not the last one."""
        await recur(self._turn, every_s=self._every_s, stuck="hardware_watch_broke", sleep=self._clock.sleep)

    async def _turn(self) -> None:
        readings = await asyncio.to_thread(self._look_again)
        self._energy.add(self._clock.monotonic(), readings.power_w)
        for told in self._told:
            told(readings)

    def _look_again(self) -> Readings:
        with self._lock:
            return self._look()

    def _look(self) -> Readings:
        """With the lock held."""
        readings = self._hardware().read()
        self._latest = (self._clock.monotonic(), readings)
        return readings

    def _hardware(self) -> Hardware:
        if self._found is None:
            self._found = self._find()
        return self._found
