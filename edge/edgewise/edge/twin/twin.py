"""Keeps the device as its desired documents say: a newer one is checked whole, brought into force, and reported.

What is bad is refused, and what was in force stays. What cannot be done now (a source that is away) is tried again. A document
that is empty after one that was not is taken for a fault of the other side. Nothing is done for a document that is in force
already: connecting again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from edgewise.core.clock import Clock
from edgewise.core.errors import BadMessage, EdgewiseError, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.agent.waker import Waker
from edgewise.edge.twin.installer import lasting
from edgewise.edge.twin.shadow import ShadowPart, Shown
from edgewise.edge.twin.store import Shadows, Standing
from edgewise.wire.envelope import VersionRefused, decode
from edgewise.wire.fleet import Desired, Reported, Shadow

log = get_logger(__name__)

PAUSES_S = (30.0, 120.0, 600.0)
"""Before what failed for now is tried again; the last one goes on."""
EMPTY = "The document is empty and the one before was not: it is not applied. Send what is meant, with its keys."

Publish = Callable[[str, Reported], Awaitable[None]]
Alarm = Callable[[str, str], Awaitable[None]]


class Twin:
    """Args:
    publish: Sends what is in force; nobody may be there to hear it, then it is said again at the next connect.
    alarm: Tells of a document that was refused: shadow and reason.
    """

    def __init__(
        self,
        parts: Sequence[ShadowPart],
        shadows: Shadows,
        clock: Clock,
        *,
        publish: Publish,
        alarm: Alarm,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._keepers: dict[str, _Keeper] = {
            part.name: _Keeper(part, shadows, clock, publish, alarm, pauses_s) for part in parts
        }
        self._shadows = shadows

    async def load(self) -> None:
        """Take what is on disk; before the first document is handed over."""
        for name, standing in (await self._shadows.all()).items():
            if name in self._keepers:
                self._keepers[name].standing = standing

    def start(self) -> None:
        for keeper in self._keepers.values():
            keeper.start()

    async def stop(self) -> None:
        for keeper in self._keepers.values():
            await keeper.stop()

    @property
    def gens(self) -> dict[Shadow, int]:
        """The newest generation of each shadow that arrived."""
        seen = {name: keeper.standing.seen for name, keeper in self._keepers.items() if keeper.standing.seen}
        return cast("dict[Shadow, int]", seen)

    @property
    def standings(self) -> Mapping[str, Standing]:
        return {name: keeper.standing for name, keeper in self._keepers.items()}

    @property
    def alive(self) -> bool:
        return all(keeper.alive for keeper in self._keepers.values())

    async def desired(self, name: str, payload: bytes) -> None:
        """A message on `dn/des/<shadow>`.

        Raises:
            BadMessage: It is none, or nobody knows the shadow.
            StorageError: The disk refuses; it comes again at the next connect.
        """
        keeper = self._keepers.get(name)
        if keeper is None:
            raise BadMessage(f"There is no shadow {name[:40]!r}; there are {', '.join(self._keepers)}.")
        if not payload:
            return  # the retained message was cleared: what is in force stays
        try:
            message = decode(payload).read(Desired)
        except VersionRefused as error:
            await keeper.unreadable(error.message)
            raise
        await keeper.take(message)

    async def report_all(self) -> None:
        """Say all that is in force: after each connect."""
        for keeper in self._keepers.values():
            await keeper.report()

    async def report(self, name: str) -> None:
        await self._keepers[name].report()

    def again(self, name: str) -> None:
        """What a document waited for may have happened."""
        self._keepers[name].wake()


class _Keeper:
    """Keeps one shadow."""

    def __init__(
        self,
        part: ShadowPart,
        shadows: Shadows,
        clock: Clock,
        publish: Publish,
        alarm: Alarm,
        pauses_s: Sequence[float],
    ) -> None:
        self._part = part
        self._shadows = shadows
        self._clock = clock
        self._publish = publish
        self._alarm = alarm
        self._pauses_s = pauses_s
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._tries = 0
        self.standing = Standing()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"twin-{self._part.name}")

    async def stop(self) -> None:
        await end_task(self._task, self._work)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def wake(self) -> None:
        self._waker.wake()

    async def take(self, message: Desired) -> None:
        """A document arrived; an older one, or the same, changes nothing."""
        if message.gen <= self.standing.seen:
            return
        standing = self.standing.arrived(message.gen, message.document)
        try:
            if not message.document and self.standing.document and not message.clear:
                raise BadMessage(EMPTY)
            self._part.check(message.document)
        except EdgewiseError as error:
            standing = standing.refused(error.message)
        await self._stand(standing)
        self._tries = 0
        if standing.state == "refused":
            log.warning("desired_refused", shadow=self._part.name, gen=message.gen, reason=standing.reason)
            await self._alarm(self._part.name, standing.reason)
            await self.report()
            return
        if self._work is not None:
            self._work.cancel()  # the newer one counts
        self._waker.wake()

    async def unreadable(self, reason: str) -> None:
        await self._alarm(self._part.name, reason)

    async def report(self) -> None:
        standing = self.standing
        try:
            shown = await self._part.show()
        except EdgewiseError as error:
            log.warning("shadow_not_shown", shadow=self._part.name, reason=error.message)
            shown = Shown()
        await self._publish(
            self._part.name,
            Reported(
                seen=standing.seen,
                applied=standing.applied,
                state=standing.state,
                reason=standing.reason,
                document=shown.document,
                edits=shown.edits,
            ),
        )

    async def _run(self) -> None:
        await self._restore()
        while True:
            if self.standing.state == "pending":
                self._work = asyncio.create_task(self._bring(), name=f"twin-{self._part.name}-work")
                await asyncio.wait({self._work})
                self._work = None
            if self.standing.state == "pending" and not self._tries:
                continue  # a newer one came meanwhile
            await self._waker.wait(self._pauses_s[min(self._tries, len(self._pauses_s)) - 1] if self._tries else 3600.0)

    async def _restore(self) -> None:
        """After a start: what was in force is again. What is missing of it is brought; what is right is left alone."""
        standing = self.standing
        if not standing.applied or standing.state == "pending":
            return
        try:
            await self._part.apply(standing.applied, standing.document, self._note)
        except EdgewiseError as error:
            log.warning("desired_not_restored", shadow=self._part.name, reason=error.message)
            await self._alarm(self._part.name, error.message)
        except Exception:  # outermost frame of a task
            log.exception("desired_broke", shadow=self._part.name)

    async def _note(self, reason: str) -> None:
        log.info("desired_restored", shadow=self._part.name, step=reason)

    async def _bring(self) -> None:
        """Try to bring the newest document into force."""
        standing = self.standing
        try:
            applied = await self._part.apply(standing.seen, standing.wanted, self._tell)
        except EdgewiseError as error:
            await self._failed(standing, error)
        except Exception:  # outermost frame of a task
            log.exception("desired_broke", shadow=self._part.name)
            await self._failed(standing, EdgewiseError("The service made an error; its log has the details."))
        else:
            done = applied.state == "applied"
            await self._settle(standing, standing.in_force(applied.reason) if done else standing.waits(applied.reason))
            self._tries = 0 if done else len(self._pauses_s)
            log.info(
                "desired_" + applied.state, shadow=self._part.name, gen=standing.seen, reason=applied.reason or None
            )

    async def _failed(self, standing: Standing, error: EdgewiseError) -> None:
        if lasting(error):
            await self._settle(standing, standing.refused(error.message))
            self._tries = 0
            await self._alarm(self._part.name, error.message)
        else:
            self._tries += 1
            await self._settle(standing, standing.waits(error.message))

    async def _settle(self, before: Standing, after: Standing) -> None:
        """Write down and report what came of a try, unless a newer document has come."""
        if self.standing.seen != before.seen:
            return
        changed = after != self.standing
        try:
            await self._stand(after)
        except StorageError as error:
            log.warning("shadow_not_kept", shadow=self._part.name, reason=error.message)
            self.standing = after  # in force all the same; the next start brings it about again
        if changed:
            await self.report()

    async def _tell(self, reason: str) -> None:
        self.standing = self.standing.waits(reason)
        await self.report()

    async def _stand(self, standing: Standing) -> None:
        await self._shadows.put(self._part.name, standing)
        self.standing = standing
