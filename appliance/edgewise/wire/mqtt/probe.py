"""What a broker can do, found out by trying: some grant what they never deliver.

The probe runs over the connection of the one who needs the broker, on topics of its own (`f/1/d/<uid>/own/probe/...`),
and takes some seconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import ConfigError, LinkLost, NotPermitted
from edgewise.core.patience import within
from edgewise.wire import topics
from edgewise.wire.mqtt.connection import Broker, Connection, Incoming, Subscription

NEEDED_PACKET = 256 * 1024
"""Bytes of a message that must go through: a block of a blob is half of it."""
_DELIVERY_S = 15.0
_EXPIRY_S = 1
_AFTER_EXPIRY_S = 2.5
_SILENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Findings; `birth` carries them.

    Attributes:
        shared: Messages of a shared subscription really arrive.
        packet: A message of `NEEDED_PACKET` bytes arrives.
        expiry: An expired retained message is not delivered.
        retain_as_published: The flag arrives as it was sent, so that a receiver can tell what is retained.
    """

    shared: bool
    packet: bool
    expiry: bool
    retain_as_published: bool

    @property
    def lacking(self) -> tuple[str, ...]:
        """Why this broker cannot be used, if it cannot."""
        reasons = []
        if not self.shared:
            reasons.append("shared subscriptions ($share) are granted or refused, but nothing is delivered to them")
        if not self.packet:
            reasons.append(
                f"a message of {NEEDED_PACKET} bytes does not arrive; raise its limit (mosquitto: max_packet_size)"
            )
        return tuple(reasons)

    @property
    def weak(self) -> tuple[str, ...]:
        """What it does not do and this protocol does without."""
        missing = [] if self.expiry else ["message expiry"]
        return tuple(missing if self.retain_as_published else [*missing, "retain as published"])

    def check(self) -> None:
        """Refuse a broker that lacks what is needed.

        Raises:
            ConfigError: The message has every reason.
        """
        if self.lacking:
            raise ConfigError(f"mqtt: this broker cannot be used: {'; '.join(self.lacking)}.")


async def probe_broker(broker: Broker) -> BrokerProbe:
    """Connect as `broker.uid` and try. A service that runs under this name is disconnected meanwhile, or disturbs the probe.

    Raises:
        LinkLost: It cannot be reached, speaks no MQTT 5, or the connection broke.
        NotAuthenticated, NotPermitted: It refuses this client, or the topics of the probe.
    """
    arrived: asyncio.Queue[Incoming] = asyncio.Queue(maxsize=100)

    def receive(incoming: Incoming) -> None:
        if not arrived.full():
            arrived.put_nowait(incoming)

    connection = Connection(broker, receive)
    await connection.open()
    try:
        return await probe_connection(connection, broker.uid, arrived)
    finally:
        await connection.close()


def probe_topics(uid: str) -> str:
    """Filter of what the probe receives."""
    return f"{topics.own(uid, 'probe')}/#"


async def probe_connection(connection: Connection, uid: str, arrived: asyncio.Queue[Incoming]) -> BrokerProbe:
    """Try over a connection that stands; what it receives on `probe_topics` must be put into `arrived`.

    Raises:
        LinkLost: The connection broke before the last trial. In the last one, of a large message, that is a finding: brokers
            answer a packet beyond their limit so.
    """
    return await _Trial(connection, uid, arrived).run()


class _Trial:
    def __init__(self, connection: Connection, uid: str, arrived: asyncio.Queue[Incoming]) -> None:
        self._connection = connection
        self._base = topics.own(uid, "probe")
        self._arrived = arrived

    async def run(self) -> BrokerProbe:
        expiring = f"{self._base}/expiry"
        await self._connection.publish(expiring, b"old", retain=True, expiry_s=_EXPIRY_S)
        shared = await self._delivered(f"$share/probe/{self._base}/shared", "shared", b"shared")
        self._check_connected()
        flag = await self._retain_flag()
        await asyncio.sleep(_AFTER_EXPIRY_S)
        await self._connection.subscribe([Subscription(expiring)])
        expired = await self._next((expiring,), _SILENCE_S) is None
        await self._connection.publish(expiring, b"", retain=True)
        self._connection.unsubscribe(expiring)
        self._check_connected()
        try:
            packet = await self._delivered(f"{self._base}/packet", "packet", bytes(NEEDED_PACKET))
        except LinkLost:  # brokers answer a packet beyond their limit so
            if not self._connection.ended.done():
                raise
            packet = False
        return BrokerProbe(shared, packet, expired, flag)

    async def _delivered(self, filter: str, name: str, payload: bytes) -> bool:
        """Whether a message reaches a subscription. A small one on a plain topic follows it: only once that has arrived does
        it mean something that the first has not.

        Raises:
            LinkLost: The connection ended, or nothing at all arrives: this says nothing of the broker.
        """
        topic, control = f"{self._base}/{name}", f"{self._base}/control"
        try:
            await self._connection.subscribe([Subscription(filter), Subscription(control)])
        except NotPermitted:
            return False
        self._connection.publish(topic, payload)
        self._connection.publish(control, name.encode())
        seen: set[str] = set()
        while topic not in seen:
            awaited = await self._next((topic, control), _SILENCE_S if control in seen else _DELIVERY_S)
            if awaited is None:
                break
            if awaited.topic == control or awaited.payload == payload:
                seen.add(awaited.topic)
        self._check_connected()
        if not seen:
            raise LinkLost("The broker delivers nothing to the probe.")
        self._connection.unsubscribe(filter)
        self._connection.unsubscribe(control)
        return topic in seen

    def _check_connected(self) -> None:
        if self._connection.ended.done():
            raise LinkLost(
                "The connection to the broker broke during the probe; another client of the same name, such as the running "
                "service, may have taken it."
            )

    async def _retain_flag(self) -> bool:
        topic = f"{self._base}/retain"
        await self._connection.subscribe([Subscription(topic, as_published=True)])
        self._connection.publish(topic, b"kept", retain=True)
        arrived = await self._next((topic,), _DELIVERY_S)
        await self._connection.publish(topic, b"", retain=True)
        self._connection.unsubscribe(topic)
        return arrived is not None and arrived.retain

    async def _next(self, among: tuple[str, ...], seconds: float) -> Incoming | None:
        """The next message on one of these topics; None if none comes in time, or the connection ends."""

        async def look() -> Incoming:
            while True:
                incoming = await self._arrival()
                if incoming.topic in among and incoming.payload:
                    return incoming

        try:
            return await within(look(), seconds, lambda: LinkLost("Nothing arrived."))
        except LinkLost:
            return None

    async def _arrival(self) -> Incoming:
        """The next message; raises `LinkLost` if the connection ends."""
        arrival = asyncio.ensure_future(self._arrived.get())
        both: set[asyncio.Future[Any]] = {arrival, self._connection.ended}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if arrival.done():
                return arrival.result()
        finally:
            arrival.cancel()
        raise LinkLost("The connection ended.")
