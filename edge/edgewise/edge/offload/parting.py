"""Last words to the cloud about jobs that nobody reads any more: cancelled, or arrived whole. They are said in the background, so
that no caller waits for a link, and repeated while it is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.offload.transport import Transport
from edgewise.wire.messages import JobControl, JobRequest

log = get_logger(__name__)

_PAUSES_S = (0.2, 1.0, 3.0, 10.0, 30.0)


class Parting:
    """Owns the tasks that say them; `close` gives them a moment and ends them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, transport: Transport, control: JobControl) -> None:
        """Tell the cloud of a job that it has taken."""
        self._begin(_insist(lambda: transport.control(control), control), f"{control.op}-{control.key}")

    def withdraw(self, transport: Transport, job: JobRequest, *, unless: str = "") -> None:
        """Cancel a job that the cloud may have taken or not: its answer was lost. Handing it over again tells.

        Args:
            unless: Id of a job that is wanted: it was taken over another transport.
        """
        control = JobControl(key=job.key, op="cancel", done=True)

        async def take_back() -> None:
            if (await transport.submit(job)).id != unless:
                await transport.control(control)

        self._begin(_insist(take_back, control), f"withdraw-{job.key}")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float = 1.0) -> None:
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await end_task(*tasks)


async def _insist(work: Callable[[], Awaitable[None]], control: JobControl) -> None:
    """A cloud that never hears it drops the job by its own limits, so that giving up is safe."""
    for pause in (*_PAUSES_S, None):
        try:
            await work()
            return
        except LinkLost:
            if pause is None:
                log.warning("cloud_not_told", op=control.op, job=control.key)
                return
            await asyncio.sleep(pause)
        except EdgewiseError as error:  # it has forgotten the job already
            log.info("cloud_control_refused", op=control.op, job=control.key, code=error.code, message=error.message)
            return
