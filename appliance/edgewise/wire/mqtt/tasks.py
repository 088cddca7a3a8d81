"""Short tasks with one owner, bounded in number: handlers of messages may not wait, so what waits runs in one of these."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task

log = get_logger(__name__)


class Tasks:
    """At most `limit` at once."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> bool:
        return len(self._tasks) >= self._limit

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None] | None:
        """Run it; None, and nothing is run, if there are too many. An error of the tree is logged, it concerns one message."""
        if self.full:
            work.close()
            log.warning("mqtt_busy", dropped=what)
            return None
        task = asyncio.create_task(self._guard(work, what), name=f"mqtt-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        """Cancel all and wait for their end."""
        await end_task(*self._tasks)

    async def _guard(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except EdgewiseError as error:
            log.info("mqtt_task_ended", what=what, reason=error.message)
        except Exception:  # a fault in one task concerns its message only
            log.exception("mqtt_task_failed", what=what)
