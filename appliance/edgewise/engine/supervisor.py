"""Keeps one engine process alive: start, watch, kill, reap, start again.

One named task (`engine-supervisor`) lives from `start` to `stop` and turns a loop of lives (`engine.life`). What a life means for
the requests is the listener's business (`engine.client`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from edgewise.core.errors import BadModelFile, ConfigError, EdgewiseError, EngineUnavailable, UnsupportedModel
from edgewise.core.log import Logger
from edgewise.core.patience import wait_set
from edgewise.engine.api import EngineState
from edgewise.engine.events import EngineEvent, EventKind
from edgewise.engine.life import Life, LifeEnd
from edgewise.engine.messages import (
    AnyConfig,
    EncoderReady,
    Message,
    PicturesReady,
    Progress,
    Ready,
    ToService,
    error_from,
)
from edgewise.engine.restart import Decision, RestartPolicy
from edgewise.engine.timings import Timings

_PERMANENT = (BadModelFile, UnsupportedModel, ConfigError)
"""Errors while loading that another try does not mend."""


class Listener(Protocol):
    """What the supervisor tells. Called in the event loop; must neither raise nor wait."""

    def engine_up(self, epoch: int, info: Any) -> None:
        """`info` is that of the engine's kind: `EngineInfo`, `PictureInfo` or `EncoderInfo`."""

    def engine_message(self, message: ToService) -> None: ...

    def engine_unsent(self, message: Message, error: EdgewiseError) -> None: ...

    def engine_down(self) -> None:
        """The life has ended, or could not begin; nothing more comes from it."""

    def engine_failed(self, error: EdgewiseError) -> None:
        """After `engine_down`, if the next try is far away."""

    def engine_event(self, event: EngineEvent) -> None: ...


class EngineSupervisor:
    """See the module's docstring.

    Args:
        config: Sent to each child.
        factory: Builds the engine there (`engine.core.load_factory`).
        timings: All limits and pauses.
        listener: Told of every life.
        log: Gets crashes with their tracebacks.
    """

    def __init__(self, *, config: AnyConfig, factory: str, timings: Timings, listener: Listener, log: Logger) -> None:
        self._config = config
        self._factory = factory
        self._timings = timings
        self._listener = listener
        self._log = log
        self._policy = RestartPolicy(timings.restart)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._life: Life | None = None
        self._progressed = False
        self._retry_at = 0.0
        self.state: EngineState = "stopped"
        self.epoch = 0
        self.failure: EdgewiseError | None = None

    def __repr__(self) -> str:
        return f"EngineSupervisor({self.state}, {self._life!r})"

    @property
    def pid(self) -> int | None:
        """Process id of the present child."""
        return None if self._life is None else self._life.pid

    @property
    def rss_bytes(self) -> int:
        """Resident set of the present child at its last heartbeat."""
        return 0 if self._life is None else self._life.rss_bytes

    def start(self) -> None:
        """Begin the first life; returns at once. Once only."""
        self.state = "starting"
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        """End the engine: ask, wait `grace_s`, kill, reap."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def send(self, message: Message) -> None:
        """Give a message to the present child; without one it is dropped."""
        if self._life is not None:
            self._life.send(message)

    def note_progress(self) -> None:
        """A token has been delivered: this life was not in vain."""
        self._progressed = True

    def unavailable(self) -> EngineUnavailable:
        """The error for a caller who cannot wait for the next life."""
        left = max(1.0, self._retry_at - time.monotonic())
        cause = "" if self.failure is None else f" Last failure: {self.failure.message}"
        state = "keeps failing" if self.state == "failed" else f"is {self.state}"
        return EngineUnavailable(f"The engine {state}; try again in {left:.0f} s.{cause}", retry_after_s=left)

    async def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    await self._turn()
                except Exception:  # noqa: BLE001 - outermost frame; logged, and the engine must come back
                    self._log.exception("engine_supervision_failed")
                    await wait_set(self._stopping, self._timings.restart.slow_s)
        finally:
            self.state = "stopped"
            self._tell("stopped", "The engine has been stopped.")

    async def _turn(self) -> None:
        """One life and the pause after it."""
        self.epoch += 1
        self._progressed = False
        try:
            end = await self._live()
        finally:
            self._life = None
            self._listener.engine_down()
        if not self._stopping.is_set():
            await wait_set(self._stopping, self._after_crash(end).pause_s)

    async def _live(self) -> LifeEnd:
        self._life = Life(
            self.epoch,
            timings=self._timings,
            stopping=self._stopping,
            on_message=self._message,
            on_unsent=self._listener.engine_unsent,
            log=self._log,
        )
        try:
            return await self._life.run(self._factory, self._config, self._started)
        except OSError as error:
            return LifeEnd(reason=f"no engine process could be started: {error}")

    def _started(self, life: Life) -> None:
        self._tell("starting", f"Engine process {life.pid} has been started.", pid=life.pid)

    def _message(self, life: Life, message: ToService) -> None:
        if isinstance(message, Progress):
            self._tell("progress", message.stage, stage=message.stage, fraction=message.fraction)
        elif isinstance(message, (Ready, PicturesReady, EncoderReady)):
            self.state, self.failure = "ready", None
            self._listener.engine_up(message.epoch, message.info)
            self._tell("ready", f"The engine is ready after {message.info.load_s:.1f} s.", pid=life.pid)
        else:
            self._listener.engine_message(message)

    def _after_crash(self, end: LifeEnd) -> Decision:
        """Decide what follows a crash, and tell."""
        fault = end.fault
        self.failure = EngineUnavailable(str(end)) if fault is None else error_from(fault.code, fault.message)
        achieved = self._progressed or (end.ready_s or 0.0) >= self._timings.restart.healthy_s
        hopeless = end.ready_s is None and isinstance(self.failure, _PERMANENT)
        now = time.monotonic()
        decision = self._policy.crashed(now, achieved=achieved, hopeless=hopeless)
        self._retry_at = now + decision.pause_s
        self.state = "failed" if decision.failed else "restarting"
        self._log.error(
            "engine_crashed",
            epoch=self.epoch,
            reason=str(end),
            traceback=None if fault is None else fault.traceback,
            restart_in_s=round(decision.pause_s, 2),
        )
        self._tell("crashed", f"The engine crashed: {end}.", status=end.status)
        self._tell(
            "failed" if decision.failed else "restarting",
            f"The engine is started again in {decision.pause_s:.1f} s.",
            delay_s=decision.pause_s,
        )
        if decision.failed:
            self._listener.engine_failed(self.unavailable())
        return decision

    def _tell(
        self,
        kind: EventKind,
        message: str,
        *,
        pid: int | None = None,
        status: int | None = None,
        stage: str | None = None,
        fraction: float | None = None,
        delay_s: float | None = None,
    ) -> None:
        self._listener.engine_event(
            EngineEvent(
                kind=kind,
                epoch=self.epoch,
                message=message,
                pid=pid,
                status=status,
                stage=stage,
                fraction=fraction,
                delay_s=delay_s,
            )
        )
