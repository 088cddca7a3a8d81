"""One life of the engine: a child process from spawn to reaping, and why it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import EdgewiseError, EngineUnavailable
from edgewise.core.log import Logger
from edgewise.engine.channel import Channel
from edgewise.engine.heartbeat import Watchdog
from edgewise.engine.messages import (
    AnyConfig,
    EncoderReady,
    Fault,
    Heartbeat,
    Message,
    PicturesReady,
    Ready,
    Stop,
    ToService,
    start_message,
)
from edgewise.engine.process import EngineProcess, describe_status
from edgewise.engine.timings import Timings

_ENDED = "the engine process ended"
_STATUS_GRACE_S = 1.0
_REAP_REPORT_S = 10.0
_GROUP_TICK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEnd:
    """How a life ended.

    Attributes:
        reason: One clause for the log.
        status: Exit code, or minus the signal's number; None if no process could be started.
        fault: What the engine itself reported, if it could.
        ready_s: For how long it was ready; None if it never was.
    """

    reason: str
    status: int | None = None
    fault: Fault | None = None
    ready_s: float | None = None

    def __str__(self) -> str:
        how = "not started" if self.status is None else describe_status(self.status)
        return f"{self.reason if self.fault is None else self.fault.message} ({how})"


class Life:
    """`run` it once.

    Args:
        epoch: Its number.
        timings: `heartbeat_s`, `limits` and `grace_s` are used.
        stopping: Set when the engine is to end in good order.
        on_message: Gets every message but heartbeats and faults.
        on_unsent: Gets a message that could not be sent.
    """

    def __init__(
        self,
        epoch: int,
        *,
        timings: Timings,
        stopping: asyncio.Event,
        on_message: Callable[[Life, ToService], None],
        on_unsent: Callable[[Message, EdgewiseError], None],
        log: Logger,
    ) -> None:
        self.epoch = epoch
        self.rss_bytes = 0
        self._timings = timings
        self._stopping = stopping
        self._on_message = on_message
        self._on_unsent = on_unsent
        self._log = log
        self._process: EngineProcess | None = None
        self._channel: Channel | None = None
        self._watchdog = Watchdog(timings.limits, tick_s=timings.heartbeat_s, now=time.monotonic())
        self._condemned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ready_at: float | None = None
        self._fault: Fault | None = None
        self._linger_s = 0.0

    def __repr__(self) -> str:
        return f"Life({self.epoch}, {self._process!r}, {self._watchdog!r})"

    @property
    def pid(self) -> int | None:
        """Process id of the child; None before it is started and after it is reaped, when the number may be another's."""
        return None if self._process is None or self._process.reaped else self._process.pid

    def send(self, message: Message) -> None:
        """Give a message to the child; dropped if there is none (any more)."""
        if self._channel is not None:
            self._channel.send(message)

    async def run(self, factory: str, config: AnyConfig, started: Callable[[Life], None]) -> LifeEnd:
        """Spawn, watch, kill, reap. `started` is called when there is a process.

        Raises:
            OSError: The system starts no more processes, or has no descriptor left.
        """
        process = self._process = EngineProcess.spawn(factory)
        channel = self._channel = Channel(
            process.sock, on_message=self._message, on_unsent=self._on_unsent, on_lost=self._lost
        )
        try:
            channel.open(asyncio.get_running_loop())
            channel.send(start_message(self.epoch, config, self._timings.heartbeat_s))
            started(self)
            reason = await self._watch(process)
            process.kill()
            status = await self._reap(process)
            await self._last_of_group(process)
            channel.read_rest()
            ready_s = None if self._ready_at is None else time.monotonic() - self._ready_at
            return LifeEnd(reason=reason, status=status, fault=self._fault, ready_s=ready_s)
        finally:
            self._channel = None
            channel.close()
            process.close()

    def _message(self, message: ToService) -> None:
        self._watchdog.heard()
        if isinstance(message, Heartbeat):
            self._watchdog.beat(message)
            self.rss_bytes = message.rss_bytes
            return
        if isinstance(message, Fault):
            self._fault = message
            return
        if isinstance(message, (Ready, PicturesReady, EncoderReady)):
            self._watchdog.ready()
            self._ready_at = time.monotonic()
        self._on_message(self, message)

    def _lost(self, error: EdgewiseError) -> None:
        if isinstance(error, EngineUnavailable):  # end of file, met just before the child can be waited for
            self._linger_s = _STATUS_GRACE_S
            self._condemn(_ENDED)
        else:
            self._condemn(error.message)

    def _condemn(self, reason: str) -> None:
        """End this life; the first reason counts."""
        if not self._condemned.done():
            self._condemned.set_result(reason)

    async def _watch(self, process: EngineProcess) -> str:
        """Wait until the child has ended, hangs, cannot be talked to, or is to stop; return why."""
        ended = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        causes: set[asyncio.Future[Any]] = {
            ended,
            stopping,
            self._condemned,
        }
        try:
            while not any(cause.done() for cause in causes):
                await asyncio.wait(causes, timeout=self._timings.heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                verdict = self._watchdog.verdict(time.monotonic())
                if verdict is not None:
                    self._condemn(verdict)
            if stopping.done():
                self.send(Stop())
                self._linger_s = 0.0 if self._ready_at is None else self._timings.grace_s
            await asyncio.wait({ended}, timeout=self._linger_s)
        finally:
            ended.cancel()
            stopping.cancel()
            await asyncio.wait({ended, stopping})
        return self._condemned.result() if self._condemned.done() else _ENDED

    async def _last_of_group(self, process: EngineProcess) -> None:
        """Wait for what the killed child had started, as the processes of its other devices: they hold memory too."""
        until = time.monotonic() + _REAP_REPORT_S
        while process.group_alive:
            if time.monotonic() > until:
                self._log.error(
                    "engine_group_does_not_die", pid=process.pid, remedy="a process that it started is left"
                )
                return
            await asyncio.sleep(_GROUP_TICK_S)

    async def _reap(self, process: EngineProcess) -> int:
        """Wait for the killed child without limit: its successor must not find the device memory still in use."""
        ended = asyncio.ensure_future(process.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=_REAP_REPORT_S)
                if not ended.done():
                    self._log.error("engine_does_not_die", pid=process.pid, remedy="waiting for the kernel to end it")
        finally:
            ended.cancel()
        return ended.result()
