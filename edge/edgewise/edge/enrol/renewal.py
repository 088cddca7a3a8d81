"""Keeps this device's certificate alive, as a part of the device service.

The fleet says when it is time and counts by its own clock, so nothing here looks at the device's. Whatever fails is tried again
for ever: a certificate that has expired meanwhile is still renewed, and the device service works without.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from fastapi import APIRouter

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, LinkLost
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.tls_time import FILE as FLOOR
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.enrol.client import EnrolmentClient, fingerprint_of
from edgewise.edge.enrol.folder import EnrolmentFolder, new_key

log = get_logger(__name__)

LONGEST_S = 86_400.0
"""The fleet is asked once a day at least: it may have another length of life by then, and tells the time."""
_FIRST_S, _MOST_S = 30.0, 3600.0
Emit = Callable[..., object]


def _pause_s(failures: int) -> float:
    """Until the next try: doubling, with jitter."""
    return min(_MOST_S, _FIRST_S * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311


class Renewal:
    """A `serving.service.Part`. It does nothing on a device that is in no fleet.

    Args:
        emit: Takes events of the service (`EventLog.emit`).
    """

    def __init__(self, home: Path, emit: Emit, *, clock: Clock | None = None) -> None:
        self._folder = EnrolmentFolder(home)
        self._floor = TimeFloor(home / FLOOR)
        self._emit = emit
        self._clock = clock or SystemClock()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Renewal({self._folder!r}, running={self._task is not None})"

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def start(self) -> None:
        if self._folder.file.exists():
            self._task = asyncio.create_task(self._run(), name="certificate-renewal")

    async def stop(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                pause = await self.once()
                failures = 0
            except EdgewiseError as error:
                failures += 1
                self._failed(error, failures)
                pause = _pause_s(failures)
            except Exception:  # outermost frame of a task: without a certificate the device is out of its fleet
                failures += 1
                log.exception("certificate_renewal_broke", failures=failures)
                pause = _pause_s(failures)
            await self._clock.sleep(pause)

    async def once(self) -> float:
        """Ask the fleet, and renew if it is time; seconds until the next question.

        Raises:
            LinkLost: The fleet is not reached. NotPermitted: The key was revoked or replaced.
            ConfigError, StorageError: The files cannot be used.
        """
        membership = await asyncio.to_thread(self._folder.read)
        if membership is None:
            return LONGEST_S
        key, _ = await asyncio.to_thread(self._folder.load)
        async with EnrolmentClient(membership.fleet, self._floor, ca_file=self._folder.ca) as client:
            challenge = await client.challenge(fingerprint_of(key))
            if challenge.renew_s > 0:
                return min(challenge.renew_s, LONGEST_S)
            new = new_key()
            answer = await client.renew(key, new, challenge.nonce)
        if answer.certificate is None or answer.ca is None:
            raise LinkLost(f"The fleet gave no certificate: {answer.state} {answer.reason}".strip())
        await asyncio.to_thread(self._folder.keep, new, answer.certificate, answer.ca)
        log.info("certificate_renewed", uid=answer.uid)
        self._emit("certificate_renewed", f"The certificate of {answer.uid} is renewed.")
        return min(answer.renew_s or LONGEST_S, LONGEST_S)

    def _failed(self, error: EdgewiseError, failures: int) -> None:
        log.warning("certificate_not_renewed", reason=error.message, failures=failures)
        if failures == 1 and not isinstance(error, LinkLost):  # a link that is away is no news
            self._emit("certificate_not_renewed", f"The certificate cannot be renewed: {error.message}")
