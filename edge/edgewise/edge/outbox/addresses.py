"""Where results may be sent: what the configuration has a way to, and how far the label of an answer lets it go."""

from __future__ import annotations

from collections.abc import Set

from edgewise.core.addresses import is_loopback
from edgewise.core.errors import InvalidRequest, NotPermitted
from edgewise.core.privacy import Privacy
from edgewise.edge.outbox.job import MQTT, POLL
from edgewise.security.fetch import FetchPolicy
from edgewise.security.post import check_target


class Addresses:
    """Args:
    policy: Of webhooks.
    carriers: Names of the ways that there are, of "webhook" and "mqtt".
    """

    def __init__(self, policy: FetchPolicy, carriers: Set[str]) -> None:
        self._policy = policy
        self._carriers = carriers

    def check(self, deliver: str, label: Privacy) -> None:
        """Raises `InvalidRequest` or `NotPermitted`, naming the field."""
        if deliver == POLL:
            return
        if deliver == MQTT:
            if MQTT not in self._carriers:
                raise InvalidRequest(
                    "'deliver' is 'mqtt', but no broker is configured: set mqtt.host.", param="deliver"
                )
            reach = Privacy.ANY  # nobody knows who listens to a broker
        else:
            host = str(check_target(deliver, self._policy).hostname).lower()
            reach = self._reach(host)
        if label < reach:
            raise NotPermitted(
                f"'deliver' would send the answer further than its label '{label.label}' allows: poll for it, or name a webhook "
                f"{'on this device' if label is Privacy.PRIVATE else 'of this site, listed in outbox.webhook_hosts'}.",
                param="deliver",
            )

    def _reach(self, host: str) -> Privacy:
        """The label that an answer sent to `host` must have at least."""
        if host == "localhost" or is_loopback(host):
            return Privacy.PRIVATE
        return Privacy.SITE if host in self._policy.private_hosts else Privacy.ANY
