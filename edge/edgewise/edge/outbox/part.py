"""The outbox as a part of the device service."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from edgewise.api.deps import ApiDependencies
from edgewise.core.files import read_secret
from edgewise.core.settings import Settings
from edgewise.edge.broker import BrokerLink
from edgewise.edge.outbox.addresses import Addresses
from edgewise.edge.outbox.courier import Carrier, Courier
from edgewise.edge.outbox.endpoints import Endpoints
from edgewise.edge.outbox.job import MQTT
from edgewise.edge.outbox.mqtt import MqttCarrier
from edgewise.edge.outbox.routes import Intake, jobs_router
from edgewise.edge.outbox.runner import Link, Runner
from edgewise.edge.outbox.schema import open_outbox
from edgewise.edge.outbox.store import Store
from edgewise.edge.outbox.webhook import Webhook
from edgewise.security.fetch import FetchPolicy, named_hosts
from edgewise.security.webhook import WebhookSender, secret_of

_DAY_S = 86_400.0
_SIGNED_BY = "outbox.webhook_secret_file"


class Outbox:
    """Deferred jobs: taken over HTTP, kept in SQLite, worked off, delivered.

    Args:
        link: To the cloud; None where none is configured.
        broker: The device's link to its broker; None where none is configured.
    """

    def __init__(
        self,
        settings: Settings,
        deps: ApiDependencies,
        *,
        link: Link | None = None,
        broker: BrokerLink | None = None,
    ) -> None:
        outbox = settings.outbox
        private, plain = named_hosts(outbox.webhook_hosts)
        policy = FetchPolicy(
            private_hosts=private,
            http_hosts=plain,
            timeout_s=outbox.webhook_timeout_s,
            remedy="in `outbox.webhook_hosts`",
        )
        file = outbox.webhook_secret_file
        secret = None if file is None else secret_of(read_secret(file, _SIGNED_BY), _SIGNED_BY)
        patience_s = outbox.webhook_timeout_s
        sender = WebhookSender(policy, secret=secret, patience_s=patience_s, clock=deps.clock)
        ways: dict[str, Carrier] = {"webhook": Webhook(sender)}
        if broker is not None:
            ways[MQTT] = MqttCarrier(broker.link, patience_s=patience_s, on_receiver=self.look_again)
            broker.on_up(self.look_again)
        keep_s = outbox.keep_days * _DAY_S
        self._database = open_outbox(settings.outbox_file)
        self.store = Store(self._database, max_open=outbox.max_open, total_bytes=outbox.total_bytes, clock=deps.clock)
        addresses = Addresses(policy, frozenset(ways))
        courier = Courier(self.store, ways, addresses, give_up_s=keep_s, clock=deps.clock)
        endpoints = Endpoints(deps)
        self._runner = Runner(
            deps, self.store, courier, endpoints, link=link, concurrency=outbox.concurrency, keep_s=keep_s
        )
        intake = Intake(deps, endpoints, addresses, longest_s=outbox.ttl_s, cloud=link is not None)
        self._router = jobs_router(intake, self.store, self._runner)

    @property
    def routers(self) -> Sequence[APIRouter]:
        return (self._router,)

    def start(self) -> None:
        self._runner.start()

    def look_again(self) -> None:
        """A link stands, or a receiver is there, that was not: what waits for its next try or delivery waits no longer."""
        self._runner.look_again()

    async def stop(self) -> None:
        await self._runner.stop()
        self._database.close()
