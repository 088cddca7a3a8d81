"""A command under way: its timers, its progress, and how it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from edgewise.core.clock import Clock
from edgewise.core.errors import StorageError
from edgewise.core.log import get_logger
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.pieces import Pieces
from edgewise.edge.agent.commands.record import Record
from edgewise.wire.fleet import Ack

log = get_logger(__name__)

_TELL_S = 1.0  # progress within a step is told this often


class Running:
    """`operation.Call`, and the side of it that the lanes see.

    Args:
        left_s: Seconds that the whole command has left.
        tell: Sends what is not kept.
    """

    def __init__(
        self,
        record: Record,
        inbox: Inbox,
        pieces: Pieces,
        clock: Clock,
        *,
        left_s: float,
        tell: Callable[[str, Ack], Awaitable[None]],
    ) -> None:
        self.id = record.id
        self.args: Mapping[str, Any] = record.args
        self.earlier: Mapping[str, Any] | None = record.note
        self.pieces = pieces
        self._inbox = inbox
        self._clock = clock
        self._tell = tell
        self._step_s = record.step_s
        self._ends_at = clock.monotonic() + left_s
        self._step_at = clock.monotonic()
        self._told_at = float("-inf")
        self._progress: tuple[str, float | None] = ("", None)
        self._changed = asyncio.Event()
        self.cancelled = record.cancelled

    # --- for the operation -----------------------------------------------------------------------------------------------

    async def note(self, facts: Mapping[str, Any]) -> None:
        await self._inbox.note(self.id, dict(facts))

    async def progress(self, step: str, percent: float | None = None) -> None:
        now = self._clock.monotonic()
        before, self._progress = self._progress, (step, percent)
        if before == self._progress:
            return
        self._step_at = now
        if before[0] == step and now - self._told_at < _TELL_S:
            return
        self._told_at = now
        try:
            await self._inbox.progress(self.id, step, percent)
        except StorageError as error:  # how far it is need not be known after a kill
            log.debug("progress_not_kept", command=self.id, reason=error.message)
        await self._tell(self.id, Ack(state="running", step=step, percent=percent))

    async def piece(self, text: str) -> None:
        await self.pieces.put(text)
        self._step_at = self._clock.monotonic()

    # --- for the lanes ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self.cancelled = True
        self._changed.set()

    def extend(self, seconds: float) -> None:
        """More time for the whole, and for the step that it is in."""
        self._ends_at += seconds
        self._step_at += seconds
        self._changed.set()

    def late(self) -> str | None:
        """Which timer has run out; None for neither."""
        now = self._clock.monotonic()
        if now >= self._ends_at:
            return "the time for the whole command is over"
        if now >= self._step_at + self._step_s:
            return f"no progress for {self._step_s:g} s" + (
                f" in the step '{self._progress[0]}'" * bool(self._progress[0])
            )
        return None

    async def attend(self, work: asyncio.Task[dict[str, Any]]) -> str | None:
        """Wait for the end of `work`; why it must be ended, if it must ("cancelled" or which timer)."""
        while not work.done():
            if self.cancelled:
                return "cancelled"
            late = self.late()
            if late is not None:
                return late
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({work, changed}, timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        return None

    def _left_s(self) -> float:
        return max(0.01, min(self._ends_at, self._step_at + self._step_s) - self._clock.monotonic())
