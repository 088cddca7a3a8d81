"""What the fleet says to devices. Only desired documents and its own presence are retained, commands never."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, Sealer, encode
from edgewise.wire.fleet import SHADOWS, Command, Control, Desired, HostLive, Received
from edgewise.wire.mqtt.connection import Will
from edgewise.wire.mqtt.link import Link

USER = "fleet"
"""Its user and client id at the broker; the access list gives this one all topics."""
_IDS = 1000  # of one `Received`


class Downlink:
    """All raise `LinkLost` while there is no broker: what was to be said is then said when the device syncs.

    Args:
        link: To the broker.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def connected(self) -> bool:
        return self._link.connected

    async def command(self, uid: str, id: str, command: Command, ttl_ms: int | None, key: str | None) -> None:
        """Send a command, under the same id each time."""
        envelope = self._seal(command, ttl_ms=ttl_ms, key=key).model_copy(update={"id": id})
        await self._link.send(topics.command(uid, command.op), envelope)

    async def control(self, uid: str, id: str, control: Control) -> None:
        await self._link.send(topics.control(uid, id), self._seal(control))

    async def desired(self, uid: str, shadow: str, desired: Desired) -> None:
        await self._link.send(topics.desired(uid, shadow), self._seal(desired), retain=True)

    async def received(self, uid: str, ids: Sequence[str]) -> None:
        """Tell a device which rows of its outbox it may forget."""
        for begin in range(0, len(ids), _IDS):
            body = Received(ids=tuple(ids[begin : begin + _IDS]))
            await self._link.send(topics.received(uid), self._seal(body))

    async def forget(self, uid: str) -> None:
        """Clear all that is retained of a device and for it."""
        retained = [topics.live(uid), topics.birth(uid), *(topics.desired(uid, shadow) for shadow in SHADOWS)]
        for topic in retained:
            await self._link.publish(topic, b"", retain=True)

    async def host_live(self, name: str) -> None:
        """Tell all devices that their fleet is there."""
        envelope = self._seal(HostLive(state="online", name=name))
        await self._link.send(topics.HOST_LIVE, envelope, retain=True)

    def farewell(self, name: str) -> tuple[str, bytes]:
        """What the link publishes last: topic and payload."""
        return topics.HOST_LIVE, encode(self._seal(HostLive(state="offline", name=name)))

    def _seal(self, body: BaseModel, *, ttl_ms: int | None = None, key: str | None = None) -> Envelope:
        return self._link.sealer.seal(body, ttl_ms=ttl_ms, key=key)


def host_will(ep: int, name: str) -> Will:
    """What the broker publishes when the fleet is gone without a word; retained, as the birth is."""
    return Will(topics.HOST_LIVE, encode(Sealer(ep).seal(HostLive(state="offline", name=name))), retain=True)
