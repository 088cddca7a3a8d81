"""Workers: claim a job, run it on the executor, write what comes to its log, end it or hand it to the next attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from edgewise.cloud.blobs import BlobStore
from edgewise.cloud.executors.protocol import Executor, Order, Produced
from edgewise.cloud.jobs.records import Claim, Ending, Queue
from edgewise.cloud.jobs.table import JobTable
from edgewise.cloud.metrics import CloudMetrics
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EdgewiseError,
    EngineFault,
    EngineUnavailable,
    StaleFence,
    StorageError,
    error_class,
)
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.priority import Priority
from edgewise.wire.messages import Blob, Chunk, DiffuseWork, Finish, GenerateWork, State, Unit

log = get_logger(__name__)

_LOOK_S = 1.0  # leases and times to live are looked at this often, and jobs that wait for their next attempt
_SWEEP_S = 30.0
_TIDY_S = 3600.0
_WEIGHT = 0.2  # of the latest attempt in the mean


@dataclass(slots=True)
class _Attempt:
    """One claim under way.

    Attributes:
        offset: Where the next chunk begins.
        skip: Steps that are done again and that the log has already.
        ending: Its end is being written: nothing stops it any more.
    """

    claim: Claim
    began_s: float
    offset: int
    skip: int = 0
    task: asyncio.Task[None] | None = None
    stopped: EdgewiseError | None = None
    ending: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    results: list[Blob] = field(default_factory=list)
    last: Produced | None = None


class Workers:
    """Args:
    count: Jobs that are worked off at once.
    """

    def __init__(
        self,
        table: JobTable,
        blobs: BlobStore,
        executor: Executor,
        metrics: CloudMetrics,
        *,
        count: int = 32,
        lease_s: float = 15.0,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._blobs = blobs
        self._executor = executor
        self._metrics = metrics
        self._count = count
        self._lease_s = lease_s
        self._clock = clock or SystemClock()
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._attempts: dict[str, _Attempt] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None
        self._draining = False
        self._mean_s = 1.0  # of an attempt; learned
        self.answered_s: float | None = None
        """Moment on the monotonic clock at which the back end brought its latest item."""
        self.trouble: str | None = None
        """Why nothing can be written to the table now."""

    def __repr__(self) -> str:
        return f"Workers(running={len(self._attempts)}, count={self._count})"

    @property
    def running(self) -> int:
        return len(self._attempts)

    def wait_s(self, queues: Iterable[Queue], priority: Priority) -> float:
        """Estimated seconds until a new job of this class would begin."""
        known = [*queues]
        free = self._count - sum(queue.running for queue in known)
        ahead = sum(queue.queued for queue in known if queue.priority <= priority)
        return 0.0 if ahead < free else (ahead - max(free, 0) + 1) * self._mean_s / self._count

    def start(self) -> None:
        self._claiming = asyncio.create_task(self._claim(), name="cloud-claim")
        self._tasks = [
            asyncio.create_task(self._keep(), name="cloud-leases"),
            asyncio.create_task(self._tidy(), name="cloud-retention"),
        ]

    async def drain(self) -> None:
        """Claim nothing more and give the leases back: the next process, or another one, goes on at the logs' ends."""
        self._draining = True
        self._table.work.set()  # wakes `_claim`, which ends
        for attempt in self._attempts.values():
            _stop(attempt)
        tasks = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        if self._claiming is not None:
            tasks.append(self._claiming)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        await self.drain()
        await end_task(*self._tasks)

    # --- tasks ----------------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        """Keep as many attempts under way as there may be; after a fault it looks again with the next second."""
        while not self._draining:
            self._table.work.clear()
            claim = None
            if len(self._attempts) < self._count:
                try:
                    claim = await self._table.claim(self._owner, self._stop_of)
                except EdgewiseError as error:
                    log.warning("claim_failed", reason=error.message)
                except Exception:  # outermost frame of a task that must not end
                    log.exception("claim_broke")
            if claim is None:
                await self._table.work.wait()
            elif self._draining:  # it came too late
                await self._give_back(claim)
            else:
                self._begin(claim)

    async def _give_back(self, claim: Claim) -> None:
        """Claimed, and not begun."""
        try:
            await self._table.give_back(claim.lease)
        except EdgewiseError as error:  # the lease runs out instead
            log.warning("claim_not_given_back", job=claim.job.id, reason=error.message)
        finally:
            self._table.forget(claim.lease)

    def _begin(self, claim: Claim) -> None:
        attempt = _Attempt(claim, self._clock.monotonic(), claim.job.count)
        if isinstance(claim.request.work, DiffuseWork):
            attempt.skip = claim.job.count
        self._attempts[claim.job.id] = attempt
        attempt.task = asyncio.create_task(self._work(attempt), name=f"{claim.job.id}.{claim.lease.attempt}")
        self._metrics.attempts.labels("first" if claim.lease.attempt == 1 else "again").inc()

    def _stop_of(self, job: str) -> None:
        """The tenant cancelled the job."""
        self._end_early(job, Cancelled("It was cancelled."))

    def _end_early(self, job: str, error: EdgewiseError) -> None:
        attempt = self._attempts.get(job)
        if attempt is not None and attempt.stopped is None:
            attempt.stopped = error
            _stop(attempt)

    async def _keep(self) -> None:
        """Renew the leases, and let time pass in the table."""
        renew_at = 0.0
        while True:
            await self._clock.sleep(_LOOK_S)
            try:
                if self._clock.monotonic() >= renew_at:
                    renew_at = self._clock.monotonic() + self._lease_s / 3
                    await self._renew()
                await self._table.tick()
                self._metrics.queues(await self._table.queues())
                self.trouble = None
            except EdgewiseError as error:
                if self.trouble != error.message:  # once, not every second: the disk may be full
                    log.warning("leases_not_renewed", reason=error.message)
                self.trouble = error.message
            except Exception:  # outermost frame of a task that must not end
                log.exception("leases_broke")

    async def _renew(self) -> None:
        leases = [attempt.claim.lease for attempt in self._attempts.values()]
        for lease in await self._table.renew(leases) if leases else ():
            self._end_early(lease.job, StaleFence(f"The lease of job {lease.job} is lost."))

    async def _tidy(self) -> None:
        """Retention."""
        tidy_at = 0.0
        while True:
            try:
                await self._table.sweep()
                await self._blobs.sweep()
                if self._clock.monotonic() >= tidy_at:
                    tidy_at = self._clock.monotonic() + _TIDY_S
                    await self._blobs.tidy()
            except EdgewiseError as error:
                log.warning("tidying_failed", reason=error.message)
            except Exception:  # outermost frame of a task that must not end
                log.exception("tidying_broke")
            await self._clock.sleep(_SWEEP_S)

    # --- one attempt ----------------------------------------------------------------------------------------------------

    async def _work(self, attempt: _Attempt) -> None:
        """Outermost frame of an attempt's task: whatever happens, the table hears of it."""
        job, lease = attempt.claim.job, attempt.claim.lease
        try:
            await self._try(attempt)
        except StaleFence:
            log.warning("lease_lost", job=job.id, attempt=lease.attempt)
            self._metrics.fenced.inc()
        except EdgewiseError as error:  # the disk refuses: the lease runs out, and another attempt follows
            log.warning("attempt_not_ended", job=job.id, attempt=lease.attempt, reason=error.message)
        except Exception:
            log.exception("attempt_broke", job=job.id, attempt=lease.attempt)
        finally:
            seconds = self._clock.monotonic() - attempt.began_s
            self._mean_s += _WEIGHT * (seconds - self._mean_s)
            self._metrics.busy.labels(job.kind).inc(seconds)
            self._table.forget(lease)
            del self._attempts[job.id]
            self._table.work.set()

    async def _try(self, attempt: _Attempt) -> None:
        """Run it, and end the attempt as its outcome asks."""
        lease = attempt.claim.lease
        try:
            try:
                finish = await self._run(attempt)
            finally:
                attempt.ending = True
        except asyncio.CancelledError:
            if attempt.stopped is None:
                await self._table.give_back(lease, busy_s=self._busy_s(attempt))
                return
            error: EdgewiseError = attempt.stopped
        except EdgewiseError as broken:
            error = broken
        except Exception as broken:  # a fault of ours, or of the back end: another attempt may do better
            log.exception("attempt_broke", job=lease.job, attempt=lease.attempt)
            error = EngineUnavailable(f"The attempt broke off by an internal error ({type(broken).__name__}).")
        else:
            await self._finish(attempt, self._ending(attempt, "succeeded", finish))
            return
        await self._settle(attempt, error)

    async def _settle(self, attempt: _Attempt, error: EdgewiseError) -> None:
        """An attempt that was not brought to its end."""
        if isinstance(error, StaleFence):
            raise error
        lease = attempt.claim.lease
        if isinstance(error, Cancelled):
            await self._finish(attempt, self._ending(attempt, "cancelled", "cancelled", error))
        elif isinstance(error, DeadlineExceeded):
            await self._finish(attempt, self._ending(attempt, "expired", "error", error))
        elif error.retryable or isinstance(error, StorageError):
            log.warning("attempt_failed", job=lease.job, attempt=lease.attempt, code=error.code, reason=error.message)
            job = await self._table.fail(lease, error, busy_s=self._busy_s(attempt))
            if job.ended:
                self._metrics.jobs.labels(job.state).inc()
        else:
            state: State = "rejected" if error.http_status < 500 else "failed"
            await self._finish(attempt, self._ending(attempt, state, "error", error))

    async def _finish(self, attempt: _Attempt, ending: Ending) -> None:
        job = await self._table.finish(attempt.claim.lease, ending)
        self._metrics.jobs.labels(job.state).inc()
        log.info("job_ended", job=job.id, tenant=job.tenant, state=job.state, attempt=job.attempt, items=job.count)

    async def _run(self, attempt: _Attempt) -> Finish:
        """Write what the executor makes to the log; why it ended. Raises what the executor raises."""
        claim = attempt.claim
        timer = None
        if claim.deadline_s is not None:
            late = DeadlineExceeded("Its time to live passed before it was done.")
            timer = asyncio.get_running_loop().call_later(claim.deadline_s, self._end_early, claim.job.id, late)
        try:
            order = await self._order(claim)
            async with contextlib.aclosing(_closable(self._executor.run(order))) as stream:
                async for produced in stream:
                    attempt.last = produced
                    if produced.count:
                        self.answered_s = self._clock.monotonic()
                    attempt.facts = produced.facts or attempt.facts
                    await self._write(attempt, produced)
                    if produced.finish is not None:
                        return _finish_of(produced)
        finally:
            if timer is not None:
                timer.cancel()
        raise EngineUnavailable("The back end's stream ended without saying why.")

    async def _order(self, claim: Claim) -> Order:
        work = claim.request.work
        wanted = [blob for blob in (work.image, work.mask) if blob] if isinstance(work, DiffuseWork) else []
        tenant = claim.job.tenant
        return Order(
            job=claim.job.id,
            attempt=claim.lease.attempt,
            work=work,
            tokens=claim.tokens,
            text=claim.text,
            media={blob.sha256: await self._blobs.read(tenant, blob.sha256) for blob in wanted},
            tenant=tenant,
            priority=claim.job.priority,
            deadline_s=claim.deadline_s,
        )

    async def _write(self, attempt: _Attempt, produced: Produced) -> None:
        """Append to the log what is new; steps that an earlier attempt logged are not logged again."""
        tenant = attempt.claim.job.tenant
        for media, content in produced.pictures:
            attempt.results.append(await self._blobs.put(tenant, content, media))
        skipped = min(attempt.skip, produced.count)
        attempt.skip -= skipped
        count = produced.count - skipped
        if count == 0 and produced.facts is None:
            return
        preview = None if produced.preview is None else await self._blobs.put(tenant, produced.preview, "image/png")
        chunk = Chunk(
            attempt=attempt.claim.lease.attempt,
            offset=attempt.offset,
            count=count,
            tokens=produced.tokens,
            text=produced.text,
            logprobs=produced.logprobs,
            preview=preview,
            facts=produced.facts,
        )
        attempt.offset += count
        if count or produced.finish is None:
            await self._table.append(attempt.claim.lease, chunk)

    def _ending(self, attempt: _Attempt, state: State, finish: Finish, error: EdgewiseError | None = None) -> Ending:
        claim, last = attempt.claim, attempt.last
        work = claim.request.work
        return Ending(
            state=state,
            finish=finish,
            unit=_unit(work, last),
            prompt_tokens=attempt.facts.get("prompt_tokens", 0),
            busy_s=self._busy_s(attempt),
            blobs=tuple(attempt.results),
            facts=attempt.facts or None,
            numeric_class=None if last is None else last.numeric_class,
            precision=None if last is None else last.precision,
            error_code=None if error is None else error.code,
            error_message=None if error is None else error.message,
            retryable=error is not None and error.retryable,
        )

    def _busy_s(self, attempt: _Attempt) -> float:
        """Seconds of computing: since the attempt began, without its wait inside the back end."""
        waited = attempt.facts.get("queued_s")
        seconds = self._clock.monotonic() - attempt.began_s
        return max(0.0, seconds - waited) if isinstance(waited, float) else seconds


def _stop(attempt: _Attempt) -> None:
    """Cancel it, unless it has come to its end by itself: a cancellation in the midst of writing that would leave it open."""
    if attempt.task is not None and not attempt.ending:
        attempt.task.cancel()


def _finish_of(produced: Produced) -> Finish:
    """Why a stream ended. Raises what the back end reports."""
    if produced.finish == "cancelled":
        raise Cancelled("The back end cancelled it.")
    if produced.finish == "error":
        message = produced.error_message or "The back end failed without saying why."
        if produced.retryable:
            raise EngineUnavailable(message)
        raise (error_class(produced.error_code or "") or EngineFault)(message)
    assert produced.finish is not None
    return produced.finish


def _unit(work: GenerateWork | DiffuseWork, last: Produced | None) -> Unit:
    if isinstance(work, DiffuseWork):
        return "steps"
    return "characters" if last is not None and last.text is not None else "tokens"


async def _closable(stream: AsyncIterator[Produced]) -> AsyncGenerator[Produced, None]:
    """The stream as something that can be closed, which cancels it."""
    try:
        async for produced in stream:
            yield produced
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
