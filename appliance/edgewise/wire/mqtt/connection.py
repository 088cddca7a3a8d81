"""One connection to a broker, on the event loop: from CONNECT until it is lost. `link.py` makes the next one.

paho-mqtt speaks the protocol; it runs here without its thread, which an exception in a callback would end while
`is_connected()` stays true. Each connection has a paho client of its own, so nothing that was queued for a dead one is sent later
unasked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgewise.core.errors import EdgewiseError, LinkLost, NotAuthenticated, NotPermitted, PayloadTooLarge
from edgewise.core.log import get_logger
from edgewise.core.patience import within
from edgewise.core.tls_time import TimeFloor, client_context
from edgewise.wire.codec import MAX_MESSAGE

log = get_logger(__name__)

RECEIVE_MAXIMUM = 20
"""Messages that a broker may send before the first of them is acknowledged, and that are sent so to it."""
MAX_PACKET = MAX_MESSAGE + 4096
SESSION_EXPIRY_S = 7 * 86_400
SILENCE_S = 6.0
"""A broker that says nothing for so long, while something that was sent to it is unacknowledged, is gone."""
_SLOWEST = 32 * 1024  # bytes a second: what waits for a slow link has so much longer
_CONNECT_S = 6.0
_TICK_S = 1.0
_TAKEN_OVER = 0x8E
_NOT_AUTHENTICATED = (0x86, 0x8C)  # bad user name or password; bad authentication method
_NOT_PERMITTED = (0x87, 0x8A)  # not authorized; banned


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where a broker is and as whom to connect; user name and client id are one name.

    `cert_file` and `key_file` (PEM) prove who connects, where the broker asks for a certificate. `floor` is
    what its certificate's dates are checked against. `silence_s`: see `SILENCE_S`. `keep_session`: whether the broker is to keep
    what comes while this client is away; who has everything sent again anyway is better off without a queue that fills or jams.
    """

    host: str
    port: int = 1883
    uid: str
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    floor: TimeFloor = field(default_factory=TimeFloor, repr=False, compare=False)
    keepalive_s: int = 30
    silence_s: float = SILENCE_S
    keep_session: bool = True


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as the broker delivered it. MQTT's `dup` is left out: brokers set it differently, nothing may depend on it."""

    topic: str
    payload: bytes
    retain: bool


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes for a client that is gone without having said so."""

    topic: str
    payload: bytes
    retain: bool = True


class Subscription(NamedTuple):
    """A filter, with QoS 1. `as_published` asks for the retain flag as its sender set it."""

    filter: str
    as_published: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a connection ended; `taken_over`: the broker said that another client came with the same name."""

    reason: str
    taken_over: bool = False


class Connection:
    """`open` it, then use it until `ended` is done."""

    def __init__(self, broker: Broker, on_message: Callable[[Incoming], None], *, will: Will | None = None) -> None:
        self._broker = broker
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, tuple[asyncio.Future[None], int]] = {}
        self._subscribing: dict[int, asyncio.Future[Sequence[ReasonCode]]] = {}
        self._fewer = asyncio.Event()
        self._heard_at = self._loop.time()
        self._ticker: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self.session_present = False
        self.max_packet = MAX_PACKET
        self.waiting_bytes = 0
        """Of messages that the broker has not acknowledged."""
        self._client = self._make_client(will)

    async def open(self) -> None:
        """Connect, with the session that the broker kept.

        Raises:
            NotAuthenticated, NotPermitted: The broker refuses this client.
            LinkLost: It cannot be reached, or speaks no MQTT 5.
        """
        broker = self._broker
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_EXPIRY_S if broker.keep_session else 0
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        properties.MaximumPacketSize = MAX_PACKET
        try:
            await asyncio.to_thread(
                self._client.connect,
                broker.host,
                broker.port,
                broker.keepalive_s,
                clean_start=not broker.keep_session,
                properties=properties,
            )
        except (OSError, ValueError) as error:
            raise LinkLost(f"The broker {broker.host}:{broker.port} cannot be reached: {error}.") from error
        sock: Any = self._client.socket()
        if sock is None:
            raise LinkLost(f"The broker {broker.host}:{broker.port} closed the connection.")
        self._loop.add_reader(sock, self._read)
        self._client.on_socket_register_write = self._watch_writing
        self._client.on_socket_unregister_write = self._unwatch_writing
        self._client.on_socket_close = self._unwatch
        self._ticker = asyncio.create_task(self._tick(), name="mqtt-tick")
        try:
            await within(self._connected, _CONNECT_S, lambda: LinkLost(f"{broker.host} answers no MQTT 5 CONNECT."))
        except BaseException:
            self._end(Ended("not connected"))
            raise

    async def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Returns once the broker has granted all of them.

        Raises:
            NotPermitted: It refuses one.
            LinkLost: The connection is over.
        """
        self._check_open()
        asked: list[tuple[str, SubscribeOptions]] = [
            (item.filter, SubscribeOptions(qos=1, retainAsPublished=item.as_published)) for item in subscriptions
        ]
        result, mid = self._client.subscribe(asked)
        if result != paho.MQTT_ERR_SUCCESS or mid is None:
            raise LinkLost("The connection to the broker broke while subscribing.")
        granted: asyncio.Future[Sequence[ReasonCode]] = self._loop.create_future()
        self._subscribing[mid] = granted
        try:
            codes = await within(granted, _CONNECT_S, lambda: LinkLost("The broker does not answer a subscription."))
        finally:
            self._subscribing.pop(mid, None)
        for item, code in zip(subscriptions, codes, strict=True):
            if code.is_failure:
                raise NotPermitted(f"The broker refuses the subscription {item.filter}: {code}.")

    def unsubscribe(self, filter: str) -> None:
        self._client.unsubscribe(filter)

    async def room(self, size: int, limit: int) -> None:
        """Wait until a message of `size` bytes keeps what is unacknowledged within `limit` bytes.

        Raises:
            LinkLost: The connection is over.
        """
        while self._waiting and self.waiting_bytes + size > limit:
            self._fewer.clear()
            await self._fewer.wait()
        self._check_open()

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, expiry_s: int | None = None
    ) -> asyncio.Future[None]:
        """Send with QoS 1; the result is done once the broker has it, or fails with `LinkLost` or `NotPermitted`.

        Raises:
            LinkLost: The connection is over; nothing was sent.
            PayloadTooLarge: The broker takes no such message.
        """
        self._check_open()
        if len(payload) + len(topic) + 64 > self.max_packet:
            raise PayloadTooLarge(
                f"A message of {len(payload)} bytes is beyond the {self.max_packet} that the broker and this protocol take. "
                "Raise max_packet_size at the broker, or use HTTP."
            )
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if expiry_s is not None:
            properties.MessageExpiryInterval = expiry_s
        info = self._client.publish(topic, payload, 1, retain, properties)
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise LinkLost(f"The connection to the broker is over: {paho.error_string(info.rc)}")
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_retrieved)
        if not self._waiting:
            self._heard_at = self._loop.time()
        self._waiting[info.mid] = (done, len(payload))
        self.waiting_bytes += len(payload)
        return done

    def end(self, reason: str) -> None:
        """Drop the connection without a goodbye."""
        self._end(Ended(reason))

    async def close(self) -> None:
        """Say goodbye, so that the broker does not publish the will, and end."""
        if not self.ended.done():
            self._client.disconnect()
            self._guarded(self._client.loop_write)
            self._end(Ended("closed"))
        if self._ticker is not None:
            await asyncio.wait({self._ticker})

    # --- paho's callbacks, in the event loop -----------------------------------------------------------------------------

    def _make_client(self, will: Will | None) -> paho.Client:
        broker = self._broker
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=broker.uid, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        client.connect_timeout = _CONNECT_S
        client.max_inflight_messages_set(RECEIVE_MAXIMUM)
        client.on_connect = self._connack
        client.on_disconnect = self._disconnected
        client.on_message = self._message
        client.on_publish = self._puback
        client.on_subscribe = self._suback
        if broker.password is not None:
            client.username_pw_set(broker.uid, broker.password)
        if broker.ca_file is not None:
            client.tls_set_context(_tls(broker))
        if will is not None:
            client.will_set(will.topic, will.payload, 1, will.retain)
        return client

    def _connack(self, client: paho.Client, _user: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if self._connected.done():
            return
        if reason.is_failure:
            self._connected.set_exception(_refusal(reason))
            return
        self.session_present = bool(flags.session_present)
        self.max_packet = min(MAX_PACKET, getattr(properties, "MaximumPacketSize", MAX_PACKET))
        # paho neither heeds the broker's limit nor lets it be set once connected.
        client._max_inflight_messages = min(RECEIVE_MAXIMUM, getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM))
        self._connected.set_result(None)

    def _disconnected(self, _client: Any, _user: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        self._end(Ended(str(reason), taken_over=reason.value == _TAKEN_OVER))

    def _message(self, _client: Any, _user: Any, message: paho.MQTTMessage) -> None:
        try:
            self._on_message(Incoming(message.topic, bytes(message.payload), bool(message.retain)))
        except Exception:  # a fault in a handler concerns one message, never the connection
            log.exception("mqtt_handler_failed", topic=message.topic[:200])

    def _puback(self, _client: Any, _user: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        done, size = self._waiting.pop(mid, (None, 0))
        self.waiting_bytes -= size
        self._fewer.set()
        if done is None or done.done():
            return
        if reason.is_failure:
            done.set_exception(NotPermitted(f"The broker refuses a message: {reason}."))
        else:
            done.set_result(None)

    def _suback(self, _client: Any, _user: Any, mid: int, codes: Sequence[ReasonCode], _properties: Any) -> None:
        granted = self._subscribing.get(mid)
        if granted is not None and not granted.done():
            granted.set_result(codes)

    # --- the socket ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._heard_at = self._loop.time()
        self._guarded(self._client.loop_read)
        while (sock := self._client.socket()) is not None and getattr(sock, "pending", int)() > 0:
            self._guarded(self._client.loop_read)  # what TLS has already taken off the socket

    def _write(self) -> None:
        self._guarded(self._client.loop_write)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # paho raises many kinds on odd bytes; each ends this connection only
            log.warning("mqtt_connection_failed", error=repr(error))
            self._end(Ended(repr(error)))

    def _watch_writing(self, _client: Any, _user: Any, sock: Any) -> None:
        self._loop.add_writer(sock, self._write)

    def _unwatch_writing(self, _client: Any, _user: Any, sock: Any) -> None:
        self._loop.remove_writer(sock)

    def _unwatch(self, _client: Any, _user: Any, sock: Any) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)

    async def _tick(self) -> None:
        """Keep-alive: paho sends the pings, and ends the connection if one is not answered. That takes a minute; what is
        unacknowledged tells sooner."""
        while not self.ended.done():
            self._guarded(self._client.loop_misc)
            self._check_heard()
            await asyncio.wait({self.ended}, timeout=_TICK_S)

    def _check_heard(self) -> None:
        limit = self._broker.silence_s + self.waiting_bytes / _SLOWEST
        if self._waiting and self._loop.time() - self._heard_at >= limit:
            self._end(Ended(f"the broker has said nothing for {limit:.0f} s"))

    def _check_open(self) -> None:
        if self.ended.done():
            raise LinkLost(f"The connection to the broker is over: {self.ended.result().reason}.")

    def _end(self, how: Ended) -> None:
        if self.ended.done():
            return
        self.ended.set_result(how)
        lost = LinkLost(f"The connection to the broker broke: {how.reason}.")
        waiting: list[asyncio.Future[Any]] = [done for done, _ in self._waiting.values()]
        waiting += [self._connected, *self._subscribing.values()]
        self._waiting.clear()
        self.waiting_bytes = 0
        self._fewer.set()
        for future in waiting:
            if not future.done():
                future.set_exception(lost)
                _retrieved(future)
        self._loop.call_soon(self._drop_socket)  # not from here: in a callback paho holds a lock that closing takes

    def _drop_socket(self) -> None:
        sock: Any = self._client.socket()
        if sock is not None:
            self._unwatch(None, None, sock)
            self._client._sock_close()  # paho has no public way to end without a DISCONNECT


def _tls(broker: Broker) -> ssl.SSLContext:
    """Read anew for each connection: a renewed certificate is used from the next one on."""
    return client_context(
        broker.floor, ca_file=broker.ca_file, system=False, cert_file=broker.cert_file, key_file=broker.key_file
    )


def _refusal(reason: ReasonCode) -> EdgewiseError:
    if reason.value in _NOT_AUTHENTICATED:
        return NotAuthenticated(f"The broker refuses this user: {reason}. Check mqtt.uid and mqtt.password_file.")
    if reason.value in _NOT_PERMITTED:
        return NotPermitted(f"The broker refuses this client: {reason}. Check mqtt.uid and the broker's users.")
    return LinkLost(f"The broker refuses the connection: {reason}. It must speak MQTT 5.")


def _retrieved(future: asyncio.Future[Any]) -> None:
    """An error that nobody waits for is no fault: what was sent unasked is found missing by its receiver."""
    if future.done() and not future.cancelled():
        future.exception()
