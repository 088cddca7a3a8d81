"""What the device says of itself at each connect: what it is, and how far it is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import asdict

from edgewise.api.deps import ApiDependencies
from edgewise.core.settings import Settings
from edgewise.edge.agent.commands.inbox import Inbox
from edgewise.edge.agent.presence import STARTED
from edgewise.edge.agent.uplink.rows import Rows
from edgewise.edge.hardware.protocol import Hardware
from edgewise.edge.twin.installer import Installer
from edgewise.edge.twin.twin import Twin
from edgewise.wire.fleet import Birth, Sync
from edgewise.wire.mqtt.link import Link

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
        )


async def sync_of(inbox: Inbox, rows: Rows, twin: Twin) -> Sync:
    """Where the device stands."""
    return Sync(gens=twin.gens, open=tuple((await inbox.open())[:_MAX_OPEN]), outbox=await rows.depths())
