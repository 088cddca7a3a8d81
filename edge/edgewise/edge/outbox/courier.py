"""Brings results to those who asked for it, until they acknowledge them. What was acknowledged is never sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from edgewise.api.responses import dumps
from edgewise.core.clock import Clock, plausible
from edgewise.core.errors import EdgewiseError, NotPermitted, StorageError
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.edge.outbox.addresses import Addresses
from edgewise.edge.outbox.job import MQTT, Job
from edgewise.edge.outbox.shown import show_result
from edgewise.edge.outbox.store import Store

log = get_logger(__name__)

FIRST_S = 2.0
LONGEST_S = 900.0
_RETRY_S = 5.0  # after a fault of the disk


class NotDelivered(Exception):
    """One try has failed. `for_good`: the receiver wants no other. `away`: it did not answer at all, so that nothing else need be
    sent to it now."""

    def __init__(self, why: str, *, for_good: bool = False, away: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.for_good = for_good
        self.away = away


class Carrier(Protocol):
    """One way to a receiver."""

    async def carry(self, job: Job, message: bytes) -> None:
        """Returns once the receiver has acknowledged the message, else raises `NotDelivered`. May be called again for a message
        that has arrived: the job's id tells the receiver so."""

    async def close(self) -> None: ...


def carrier_name(deliver: str) -> str:
    """Which carrier brings the result of a job that asks for `deliver`."""
    return MQTT if deliver == MQTT else "webhook"


def pause_s(sends: int) -> float:
    """Seconds until the try after `sends` failed ones: doubling, with jitter, lest receivers that come back are overrun."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(sends - 1, 20)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def label_of(job: Job) -> Privacy:
    """The label of what a job's response says: the receipt's, or what key and header gave the job where that is stricter."""
    body = {} if job.response is None else job.response["body"]
    receipt = body.get("edgewise") or {}
    told = [name for name in (job.privacy, receipt.get("privacy")) if name is not None]
    return min(map(privacy_of, told), default=Privacy.ANY)


class Courier:
    """Args:
    addresses: Know how far an answer may go.
    carriers: By the names "webhook" and "mqtt"; what has no carrier is not accepted in the first place.
    give_up_s: Age of a result, from its job's end, at which no further try is made; it can still be polled.
    """

    def __init__(
        self,
        store: Store,
        carriers: Mapping[str, Carrier],
        addresses: Addresses,
        *,
        give_up_s: float,
        clock: Clock,
        concurrency: int = 4,
    ) -> None:
        self._store = store
        self._carriers = carriers
        self._addresses = addresses
        self._give_up_s = give_up_s
        self._clock = clock
        self._concurrency = concurrency
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._wakes = 0

    def __repr__(self) -> str:
        return f"Courier(carriers={sorted(self._carriers)}, sending={len(self._sending)})"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._carriers)

    async def fill(self) -> None:
        """Begin what is due, as far as there is room."""
        room = self._concurrency - len(self._sending)
        if room <= 0:
            return
        for job in await self._store.to_send(room, self._sending):
            task = asyncio.create_task(self._send(job), name=f"deliver/{job.id}")
            self._sending[job.id] = task
            task.add_done_callback(partial(self._done, job.id))

    def woken(self) -> None:
        """Something is back that was away: a try that fails although it began before counts as the first one."""
        self._wakes += 1

    async def stop(self) -> None:
        """End at once: what was not acknowledged is sent again after the next start."""
        await end_task(*self._sending.values())
        for carrier in self._carriers.values():
            await carrier.close()

    def _done(self, id: str, _: asyncio.Task[None]) -> None:
        del self._sending[id]
        self._store.changed.set()

    async def _send(self, job: Job) -> None:
        try:
            await self._try(job)
        except StorageError as error:  # sent or not, the table does not know: the next try has the same id
            log.warning("delivery_not_noted", job=job.id, reason=error.message)
            await self._clock.sleep(_RETRY_S)
        except Exception:  # outermost frame of a task
            log.exception("delivery_broke", job=job.id)
            await self._clock.sleep(_RETRY_S)

    async def _try(self, job: Job) -> None:
        carrier, wakes = self._carriers.get(carrier_name(job.deliver)), self._wakes
        try:
            self._check(job)
            if carrier is None:
                raise NotDelivered(f"There is no way to deliver by {carrier_name(job.deliver)} as configured.")
            await carrier.carry(job, dumps(show_result(job)))
        except NotDelivered as failure:
            over = failure.for_good or self._too_old(job)
            log.warning("delivery_failed", job=job.id, tries=job.sends + 1, reason=failure.why, given_up=over)
            again_s = pause_s(job.sends + 1 if wakes == self._wakes else 1)
            await self._store.not_sent(job.id, failure.why, again_s=None if over else again_s)
            if failure.away:
                await self._store.put_off(job.deliver, again_s)
        else:
            await self._store.sent(job.id)
            log.info("delivered", job=job.id, tries=job.sends + 1)

    def _check(self, job: Job) -> None:
        """Raises `NotDelivered`, for good, where the answer's label keeps it from the receiver."""
        try:
            self._addresses.check(job.deliver, label_of(job))
        except NotPermitted as error:
            raise NotDelivered(error.message, for_good=True) from error
        except EdgewiseError as error:
            raise NotDelivered(error.message) from error

    def _too_old(self, job: Job) -> bool:
        ended = job.ended_at or 0.0
        return plausible(ended) and self._clock.time() - ended >= self._give_up_s
