"""The alert engine as the settings want it."""

from __future__ import annotations

from edgewise.cloud.fleet.alerts.delivery import Delivery
from edgewise.cloud.fleet.alerts.engine import AlertEngine
from edgewise.cloud.fleet.alerts.mail import make_mailer
from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.db.database import FleetDatabase
from edgewise.cloud.fleet.services import Registry
from edgewise.core.clock import Clock
from edgewise.core.files import read_secret
from edgewise.core.settings import Settings
from edgewise.security.fetch import FetchPolicy, named_hosts
from edgewise.security.webhook import WebhookSender, secret_of

_SIGNED_BY = "fleet.webhook_secret_file"
_PATIENCE_S = 15.0


def make_alert_engine(
    settings: Settings, db: FleetDatabase, registry: Registry, changes: Changes, *, clock: Clock
) -> AlertEngine:
    """Not yet started.

    Raises:
        ConfigError: Mail or the signing of webhooks is not configured as it must be.
    """
    fleet = settings.fleet
    private, plain = named_hosts(fleet.webhook_hosts)
    policy = FetchPolicy(
        http_hosts=plain, private_hosts=private, timeout_s=_PATIENCE_S, remedy="in `fleet.webhook_hosts`"
    )
    file = fleet.webhook_secret_file
    secret = None if file is None else secret_of(read_secret(file, _SIGNED_BY), _SIGNED_BY)
    webhooks = WebhookSender(policy, secret=secret, patience_s=_PATIENCE_S, clock=clock)
    url = fleet.public_url or settings.model_copy(update={"host": fleet.host, "port": fleet.port}).base_url
    delivery = Delivery(db, webhooks, make_mailer(fleet), url)
    return AlertEngine(db, registry, delivery, changes, clock=clock)
