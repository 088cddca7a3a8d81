"""Whether the cloud can be reached, and over which transport: a small question now and then, which also keeps a connection warm.

The first transport that answers is the one to use; while a later one serves, the earlier ones are asked again each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, wait_set
from edgewise.edge.offload.transport import Transport
from edgewise.edge.placement.protocol import LinkState, Meter
from edgewise.pipeline.plan import Outside
from edgewise.wire.messages import CloudInfo

log = get_logger(__name__)

WARM_S = 12.0
"""Pause between two questions while the link is up; shorter than idle connections are kept."""

_RETRY_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)

Emit = Callable[..., object]
"""`emit(kind, message, **facts)` of the service's event log."""


class Health:
    """Watches the link between `start` and `stop`.

    Args:
        transports: The preferred one first.
        emit: Told when the state changes.
        meter: Told of round trips.
        place: Where they lead; events are named after it.
    """

    def __init__(
        self, transports: Sequence[Transport], *, emit: Emit, meter: Meter | None = None, place: Outside = "cloud"
    ) -> None:
        self._transports = tuple(transports)
        self._current = self._transports[0]
        self._emit = emit
        self._meter = meter
        self._place = place
        self._state = LinkState(False, f"The {place} has not been asked yet.")
        self._told: bool | None = None
        self._info: CloudInfo | None = None
        self._refusals: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def info(self) -> CloudInfo | None:
        """What the cloud said of itself last."""
        return self._info

    def transport(self) -> Transport:
        """The one to use now."""
        return self._current

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=f"{self._place}-link")

    async def stop(self) -> None:
        await end_task(self._task)
        for transport in self._transports:
            await transport.close()

    def lost(self, name: str, error: LinkLost) -> None:
        """A request met a broken link: look at once, and do not plan with it until it answers. Nobody is told before that: a
        connection may break while the cloud is well."""
        if self._state.up and name == self._current.name:
            self._state = LinkState(False, error.message)
        self._wake.set()

    def back(self) -> None:
        """A request went on after a loss: look at once, so that plans know it too."""
        if not self._state.up:
            self._wake.set()

    async def wait_asked(self, seconds: float) -> None:
        """Return once the cloud has answered or refused for the first time, at most after `seconds`."""
        await wait_set(self._asked, seconds)

    # --- watching ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        failures = 0
        while True:
            failures = 0 if await self._looked() else failures + 1
            self._asked.set()
            pause = WARM_S if not failures else _RETRY_S[min(failures, len(_RETRY_S)) - 1]
            await wait_set(self._wake, pause)
            self._wake.clear()

    async def _looked(self) -> bool:
        try:
            return await self._look()
        except (
            Exception
        ) as error:  # outermost frame of a task: a watch that ended would watch nothing, and nobody would know
            log.exception(f"{self._place}_watch_broke")
            self._down(f"asking it broke off by an internal error ({type(error).__name__}).")
            return False

    async def _look(self) -> bool:
        """Ask every transport in turn; the first that answers is taken."""
        reasons = []
        for transport in self._transports:
            try:
                started = time.monotonic()
                info = await transport.info()
            except EdgewiseError as error:
                reasons.append(f"{transport.name}: {error.message}")
                if not isinstance(error, LinkLost):
                    self._refused(transport, error)
                continue
            self._refusals.pop(transport.name, None)
            if self._meter is not None and self._state.up:  # the first one also pays for the connection
                self._meter.round_trip(time.monotonic() - started)
            self._up(transport, info)
            return True
        self._down(" ".join(reasons))
        return False

    def _refused(self, transport: Transport, error: EdgewiseError) -> None:
        """Logged once, not at every question: a key that was revoked stays so until somebody replaces it."""
        if self._refusals.get(transport.name) != error.message:
            self._refusals[transport.name] = error.message
            log.warning(f"{self._place}_refuses", transport=transport.name, code=error.code, message=error.message)

    def _up(self, transport: Transport, info: CloudInfo) -> None:
        changed = self._told is not True or transport is not self._current
        self._current, self._info, self._state, self._told = transport, info, LinkState(True), True
        if changed:
            log.info(f"{self._place}_up", name=info.name, transport=transport.name, models=len(info.models))
            self._emit(
                f"{self._place}_up",
                f"The {self._place} {info.name} answers over {transport.name}.",
                transport=transport.name,
            )

    def _down(self, why: str) -> None:
        changed = self._told is not False
        self._state, self._told = LinkState(False, why), False
        if changed:
            log.warning(f"{self._place}_down", reason=why)
            self._emit(f"{self._place}_down", f"The {self._place} cannot be used: {why}")
