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
        """Whether an answer may be sent there; asked before a job is taken, and again before its answer goes: its label may have
        become stricter (of a model that was not known before, or of a configuration that was changed).

        Raises:
            InvalidRequest, NotPermitted: It may not; they name the field.
        """
        if deliver == MQTT and MQTT not in self._carriers:
            raise InvalidRequest("'deliver' is 'mqtt', but no broker is configured: set mqtt.host.", param="deliver")
        if label < self._reach(deliver):
            raise NotPermitted(
                f"'deliver' would send the answer further than its label '{label.label}' allows: poll for it, or name a webhook "
                f"{'on this device' if label is Privacy.PRIVATE else 'of this site, listed in outbox.webhook_hosts'}.",
                param="deliver",
            )

    def _reach(self, deliver: str) -> Privacy:
        """The label that an answer sent there must have at least."""
        if deliver == POLL:
            return Privacy.PRIVATE
        if deliver == MQTT:
            return Privacy.ANY  # nobody knows who listens to a broker
        host = str(check_target(deliver, self._policy).hostname).lower()
        if host == "localhost" or is_loopback(host):
            return Privacy.PRIVATE
        return Privacy.SITE if host in self._policy.private_hosts else Privacy.ANY
