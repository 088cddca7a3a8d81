"""What the device says of itself at each connect: what it is, and how far it is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import asdict

from cryptography import x509

from edgewise.api.deps import ApiDependencies
from edgewise.core.log import get_logger
from edgewise.core.settings import Settings
from edgewise.core.tls_time import FILE as FLOOR
from edgewise.core.tls_time import TimeFloor, clock_is_set
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.commands.operation import DAY_S
from edgewise.edge.agent.presence import STARTED
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.edge.hardware.protocol import Hardware
from edgewise.edge.twin.installer import Installer
from edgewise.edge.twin.twin import Twin
from edgewise.wire.fleet import Birth, Sync
from edgewise.wire.mqtt.link import Link

log = get_logger(__name__)

_MAX_OPEN = 1000


class Facts:
    """Args:
    boot: Id of this boot of the machine.
    ops: Names of the operations that it understands.
    """

    def __init__(
        self,
        settings: Settings,
        deps: ApiDependencies,
        link: Link,
        hardware: Hardware,
        installer: Installer,
        *,
        boot: str,
        ops: Sequence[str],
    ) -> None:
        self._settings = settings
        self._deps = deps
        self._link = link
        self._hardware = hardware
        self._installer = installer
        self._boot = boot
        self._ops = tuple(ops)

    async def birth(self) -> Birth:
        agent, found = self._settings.agent, self._link.found
        return Birth(
            version=self._deps.version,
            boot=self._boot,
            started=STARTED,
            name=agent.name or socket.gethostname()[:128],
            ops=self._ops,
            hardware=dict(await asyncio.to_thread(self._hardware.describe)),
            models=tuple(await self._installer.states()),
            limits={
                "outbox_bytes": agent.outbox_bytes,
                "keep_days": agent.keep_days,
                "requests": self._deps.limits.max_concurrent_requests,
                "memory_bytes": self._deps.models.status().budget_bytes,
            },
            broker={} if found is None else asdict(found),
            certificate_days=await asyncio.to_thread(self._certificate_days),
        )

    def _certificate_days(self) -> float | None:
        """Days that the device's certificate has left, by the latest moment that is known to have passed."""
        file = self._settings.mqtt.cert_file
        if file is None:
            return None
        try:
            ends = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()
        except (OSError, ValueError) as error:
            log.warning("certificate_not_read", path=str(file), reason=str(error))
            return None
        now = TimeFloor(self._settings.home / FLOOR).value
        if clock_is_set():
            now = max(now, self._deps.clock.time())
        return round((ends - now) / DAY_S, 2)


async def sync_of(inbox: Inbox, rows: Rows, twin: Twin) -> Sync:
    """Where the device stands."""
    return Sync(gens=twin.gens, open=tuple((await inbox.open())[:_MAX_OPEN]), outbox=await rows.depths())
