"""Enrol this device: make a key, show a claim code, wait for the answer, keep it."""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import Callable
from pathlib import Path

from edgewise.core.errors import InvalidRequest, LinkLost, NotPermitted
from edgewise.core.tls_time import FILE as FLOOR
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.enrol.client import EnrolmentClient, fingerprint_of, make_csr
from edgewise.edge.enrol.folder import EnrolmentFolder, Membership
from edgewise.wire.fleet import Enrolled, EnrolRequest

_RETRY_S = 10.0


class NotAccepted(NotPermitted):
    """The fleet refused this device."""


class StillWaiting(LinkLost):
    """An administrator has not decided yet."""


async def enrol(
    home: Path,
    url: str,
    code: str,
    *,
    name: str = "",
    ca_file: Path | None = None,
    pin: str | None = None,
    again: bool = False,
    wait: bool = True,
    tell: Callable[[Enrolled, str], None] = lambda *_: None,
) -> Membership:
    """Enrol the device of a state directory. Interrupted at any point, the same call goes on.

    Args:
        name: For people; "" takes the host's.
        ca_file, pin: As `EnrolmentClient` takes them.
        again: Whether a device that is in a fleet may get a new key, or another fleet.
        wait: Whether to wait until an administrator has decided.
        tell: Is given each answer that says to wait, and the fingerprint of the key that waits.

    Raises:
        InvalidRequest: It is in a fleet already, or the address will not do.
        NotPermitted: The code is not good, or the device was refused.
        StillWaiting: Nobody has decided, and `wait` is off.
        LinkLost: The fleet service is not reached.
        StorageError: The disk refuses.
    """
    folder = EnrolmentFolder(home)
    membership = folder.read()
    if membership is not None and not again:
        raise InvalidRequest(
            f"This device is {membership.uid} of {membership.fleet} already; --again gives it a new key or another fleet."
        )
    key = folder.key_for(code)
    request = EnrolRequest(
        code=code,
        csr=make_csr(key),
        name=(name or socket.gethostname())[:128],
        hardware={"machine": platform.machine(), "system": platform.platform(), "host": socket.gethostname()},
    )
    async with EnrolmentClient(url, TimeFloor(home / FLOOR), ca_file=ca_file, pin=pin) as client:
        answer = await client.enrol(request)
        while answer.state == "pending":
            tell(answer, fingerprint_of(key))
            if not wait:
                raise StillWaiting("An admin of the fleet must accept this device; then run the same command again.")
            await asyncio.sleep(answer.retry_s or _RETRY_S)
            answer = await client.enrol(request)  # the code and the key again: the answer is this device's only
    if answer.state == "refused" or answer.certificate is None or answer.ca is None:
        folder.forget_pending()
        raise NotAccepted(f"The fleet refused this device. {answer.reason}".strip())
    return folder.join(client.url, key, answer)
