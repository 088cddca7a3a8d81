"""Works deferred jobs off, a few at a time, through the same way as every other request; what cannot be answered now waits.

Whatever only a link can answer waits until the link is back. All truth is in the store: what was running when the service ended
is begun again, with the same id and seed, so that a cloud that has the job already goes on with that one. What was called off
there (a link that was lost, a service that was stopped) goes there again under a new id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import internal_error
from edgewise.api.unattended import Unattended, answer_unattended, may_pass
from edgewise.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EdgewiseError,
    ModelNotFound,
    NoPlace,
    ShuttingDown,
    StorageError,
)
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, wait_set
from edgewise.core.priority import priority_of
from edgewise.core.privacy import privacy_of
from edgewise.edge.outbox.courier import Courier
from edgewise.edge.outbox.endpoints import Endpoints
from edgewise.edge.outbox.gauges import Gauges
from edgewise.edge.outbox.job import Job
from edgewise.edge.outbox.shown import response_of
from edgewise.edge.outbox.store import Store
from edgewise.edge.placement.protocol import LinkState
from edgewise.wire.messages import State

log = get_logger(__name__)

ROUTE = "/edgewise/v1/jobs"
_LOOK_S = 30.0  # expiry is looked at this often, at least
_LINK_S = 1.0  # the link's state, while it is down
_NOTICED_S = 20.0  # after which a lost link was noticed, and what the cloud has was looked at again
_TIDY_S = 3600.0
_RETRY_S = 5.0  # after a fault of the disk
_MAX_BACKOFF_S = 30.0


class Link(Protocol):
    """Whether the cloud can be reached; `edge.placement.protocol.Elsewhere` is one."""

    @property
    def link(self) -> LinkState: ...


class Runner:
    """Args:
    endpoints: What a job may ask.
    link: To the cloud; None where none is configured.
    concurrency: Jobs under way at once.
    keep_s: Age at which jobs that ended are forgotten.
    """

    def __init__(
        self,
        deps: ApiDependencies,
        store: Store,
        courier: Courier,
        endpoints: Endpoints,
        *,
        link: Link | None,
        concurrency: int,
        keep_s: float,
    ) -> None:
        self._deps = deps
        self._store = store
        self._courier = courier
        self._endpoints = endpoints
        self._link = link
        self._concurrency = concurrency
        self._keep_s = keep_s
        self._gauges = Gauges(deps.metrics.registry)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._main: asyncio.Task[None] | None = None
        self._was_up = False
        self._again = True
        self._stopped = False

    def __repr__(self) -> str:
        return f"Runner(running={len(self._running)}, concurrency={self._concurrency})"

    def start(self) -> None:
        self._main = asyncio.create_task(self._run(), name="outbox")

    async def stop(self) -> None:
        """End at once; jobs under way wait for the next start."""
        self._stopped = True
        await end_task(*self._running.values(), self._main)
        await self._courier.stop()
        if self._main is not None:
            with contextlib.suppress(StorageError):  # then the next start finds them running, as after a crash
                await self._store.recover(crashed=False)

    def drop(self, id: str) -> None:
        """A job has ended otherwise: end what still works on it."""
        task = self._running.get(id)
        if task is not None:
            task.cancel()

    def look_again(self) -> None:
        """A link stands that did not: what waits for its next try or delivery waits no longer."""
        self._again = True
        self._store.changed.set()

    # --- the loop ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._surely(self._store.recover)
        tidy_at = 0.0
        while not self._stopped:
            if (now := self._deps.clock.monotonic()) >= tidy_at:
                tidy_at = now + _TIDY_S
                await self._surely(partial(self._store.prune, self._keep_s))
            self._store.changed.clear()
            try:
                pause = await self._look()
            except EdgewiseError as error:  # the disk refuses: it may not for ever
                log.warning("outbox_waits", reason=error.message)
                pause = _RETRY_S
            except Exception:  # outermost frame of a task; the outbox must not stand still
                log.exception("outbox_broke")
                pause = _RETRY_S
            await wait_set(self._store.changed, pause)

    async def _look(self) -> float:
        """Begin what can be begun; seconds until it is worth looking again."""
        for id in await self._store.expire():
            self.drop(id)
        up = self._link is None or self._link.link.up
        if self._again or (up and not self._was_up):
            self._again = False
            self._courier.woken()
            await self._store.wake()
        self._was_up = up
        if not self._deps.draining:
            await self._fill()
        await self._courier.fill()
        self._gauges.show(await self._store.counts())
        due = await self._store.next_due_s()
        longest = _LOOK_S if up else _LINK_S
        return longest if due is None else min(longest, due)

    async def _fill(self) -> None:
        room = self._concurrency - len(self._running)
        if room <= 0:
            return
        for job in await self._store.due(room, self._running):
            task = asyncio.create_task(self._do(job), name=job.id)
            self._running[job.id] = task
            task.add_done_callback(partial(self._done, job.id))

    def _done(self, id: str, _: asyncio.Task[None]) -> None:
        del self._running[id]
        self._store.changed.set()

    # --- one job ----------------------------------------------------------------------------------------------------------

    async def _do(self, job: Job) -> None:
        if not await self._surely(partial(self._store.begin, job.id)):
            return
        try:
            response = await self._answer(job)
        except ShuttingDown:
            return  # `stop` lets it wait for the next start
        except EdgewiseError as error:
            await self._failed(job, error)
        except Exception as error:  # outermost frame of a task; the job must not stand still
            log.exception("job_broke", job=job.id)
            await self._end(job, "failed", response_of(internal_error(error)))
        else:
            await self._end(job, "succeeded", response)

    async def _answer(self, job: Job) -> dict[str, Any]:
        endpoint = self._endpoints.find(job.url)
        asked = Unattended(
            id=job.request_id,
            route=ROUTE,
            owner=job.owner,
            priority=priority_of(job.priority),
            timeout_s=max(0.1, job.expires_at - self._deps.clock.time()),
            privacy=None if job.privacy is None else privacy_of(job.privacy),
            policy=job.policy,
            allowed=job.allowed,
            seed=job.seed,
        )
        answered = await answer_unattended(self._deps, endpoint, asked, job.body or {})
        return {"status_code": 200, "body": answered.body}

    async def _failed(self, job: Job, error: EdgewiseError) -> None:
        if self._waits(job, error):
            seconds = min(_MAX_BACKOFF_S, max(error.retry_after_s or 0.0, 2.0 ** min(job.tries, 5)))
            log.info("job_waits", job=job.id, tries=job.tries + 1, reason=error.message)
            await self._surely(partial(self._store.postpone, job.id, error.message, seconds))
            return
        await self._end(job, _state(job, error, self._deps.clock.time()), response_of(error))

    def _waits(self, job: Job, error: EdgewiseError) -> bool:
        """Whether the job may be answered later: by itself, or by a cloud that cannot be reached or may have changed since it was
        first tried."""
        if may_pass(error) or (isinstance(error, Cancelled) and not job.breaks):
            return True
        if self._link is None or not isinstance(error, NoPlace | ModelNotFound):
            return False
        fresh = job.started_at is None or self._deps.clock.time() - job.started_at < _NOTICED_S
        return fresh or not self._link.link.up

    async def _end(self, job: Job, state: State, response: Mapping[str, Any]) -> None:
        if await self._surely(partial(self._store.finish, job.id, state, response)):
            log.info("job_ended", job=job.id, state=state, status=response["status_code"])

    async def _surely(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something with the store, however long the disk refuses: an answer in memory must not be lost."""
        while True:
            try:
                return await work()
            except StorageError as error:
                log.warning("outbox_waits", reason=error.message)
                await self._deps.clock.sleep(_RETRY_S)


def _state(job: Job, error: EdgewiseError, now: float) -> State:
    """How a job ends by an error that does not pass."""
    if isinstance(error, DeadlineExceeded) and now >= job.expires_at:
        return "expired"
    if isinstance(error, Cancelled):
        return "cancelled"
    return "rejected" if error.http_status < 500 else "failed"
