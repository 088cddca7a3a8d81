"""A link to a broker that is made again whenever it breaks.

The broker is a wire: nothing is kept here for later. What cannot be sent now fails with `LinkLost`, and whoever sent it knows
what is still owed when the link is back.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import EdgewiseError, LinkLost, NotAuthenticated, NotPermitted
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, within
from edgewise.wire import topics
from edgewise.wire.envelope import Envelope, Sealer, encode
from edgewise.wire.mqtt.connection import Broker, Connection, Ended, Incoming, Subscription, Will
from edgewise.wire.mqtt.probe import BrokerProbe, probe_connection, probe_topics
from edgewise.wire.mqtt.session import SessionCounter

log = get_logger(__name__)

MAX_WAITING = 8 * 1024**2
"""Bytes that may wait for the broker's acknowledgement before `publish` itself waits."""
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 120.0
_STEADY_S = 1.0
_CLONE_S = 60.0
_FAREWELL_S = 2.0

Handler = Callable[[Incoming], None]
EventKind = Literal["up", "down", "refused", "clone", "unfit"]


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """What befell a link: "up", "down" or "refused" (by the broker, with its reason); and after which it has stopped: "clone"
    (another client uses the same name) and "unfit" (the broker lacks what is needed)."""

    kind: EventKind
    message: str


class Handed(NamedTuple):
    """A message on its way. `taken` is done once the broker has acknowledged it, or fails as `Connection.publish` says."""

    size: int
    taken: asyncio.Future[None]


class Link:
    """One client of a broker.

    Args:
        broker: Where, and as whom.
        sessions: Numbers the sessions; each connection is one.
        will: Makes the last will of the session with a number.
        probe: Whether to find out, after the first connect, what the broker can do; one that lacks what is needed is not used.
        birth: Called after each connect, when all subscriptions stand; publish what the other side must know then.
        on_event: Told what befalls the link; it must not raise.
        on_stop: Called when it has been stopped.
    """

    def __init__(
        self,
        broker: Broker,
        sessions: SessionCounter,
        *,
        will: Callable[[int], Will] | None = None,
        birth: Callable[[], Awaitable[None]] | None = None,
        on_event: Callable[[LinkEvent], None] | None = None,
        on_stop: Callable[[], None] | None = None,
        probe: bool = False,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.uid = topics.check_uid(broker.uid)
        self._broker = broker
        self._sessions = sessions
        self._will, self._birth, self._on_event, self._on_stop = will, birth, on_event, on_stop
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311  # spreads reconnects, hides nothing
        self._handlers: list[tuple[Subscription, Handler]] = []
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._sealer = Sealer(0)
        self._note = topics.own(self.uid, "session")
        self._probe_filter = probe_topics(self.uid)
        self._name = uuid.uuid4().hex  # of this object, in the note
        self._taken: deque[float] = deque(maxlen=2)
        self._connects = 0
        self._up_since: float | None = None
        self._carried = False
        self._noted = False
        self._earlier: object = None
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._probed: asyncio.Queue[Incoming] = asyncio.Queue(maxsize=100)
        self._unfit = 0
        self.found: BrokerProbe | None = None
        """What the broker was found to be able to do."""
        self.stopped_because: str | None = None

    # --- life ------------------------------------------------------------------------------------------------------------

    def on(self, filter: str, handler: Handler) -> None:
        """Hand messages that match a filter to `handler`, in the event loop, one at a time. Call it before `start`.

        Filters must be equal or not overlap: a broker sends a message once for each that matches.
        """
        self._handlers.append((Subscription(filter), handler))

    def start(self) -> None:
        """Begin to connect, if it has not; returns at once."""
        if self._task is not None:
            return
        self._task = asyncio.create_task(self._keep(), name=f"mqtt-link-{self.uid}")

    def revive(self) -> bool:
        """Begin again if the task that keeps the link was ended by a fault of its own; whether it was."""
        if self._task is None or not self._task.done() or self._stopping or self.stopped_because is not None:
            return False
        self._task = None
        self.start()
        return True

    async def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """Publish a last retained message (topic, payload), if there is one, and disconnect."""
        self._stopping = True
        connection = self._connection
        if farewell is not None and connection is not None and self._up.is_set():
            try:
                told = connection.publish(*farewell, retain=True)
                await within(told, _FAREWELL_S, lambda: LinkLost("The broker did not take the last message."))
            except EdgewiseError as error:
                log.warning("mqtt_farewell_failed", error=error.message)
        if self._probing is not None:
            self._probing.cancel()
        if connection is not None:
            await connection.close()
        await end_task(self._task)
        if self._on_stop is not None:
            self._on_stop()

    @property
    def connected(self) -> bool:
        return self._up.is_set() and self._connection is not None and not self._connection.ended.done()

    @property
    def connection(self) -> Connection:
        """The one that stands now.

        Raises:
            LinkLost: There is none.
        """
        if self._connection is None or not self.connected:
            raise LinkLost(
                self.stopped_because or f"The broker {self._broker.host}:{self._broker.port} is not connected."
            )
        return self._connection

    @property
    def connects(self) -> int:
        """How often the link was made; a change tells that there was a gap."""
        return self._connects

    async def wait_connected(self, seconds: float) -> None:
        """Returns once the link stands.

        Raises:
            LinkLost: It does not within so many seconds, or never will.
        """
        if self.stopped_because is None and not self.connected:
            await within(
                self._connecting(), seconds, lambda: LinkLost(f"The broker {self._broker.host} is not reached.")
            )
        _ = self.connection

    async def _connecting(self) -> None:
        while not self.connected and self.stopped_because is None:
            await asyncio.sleep(0)  # let the task that keeps the link see that it is lost
            await self._up.wait()

    # --- messages --------------------------------------------------------------------------------------------------------

    @property
    def sealer(self) -> Sealer:
        """Makes the envelopes of the session that stands now."""
        return self._sealer

    async def send(self, topic: str, envelope: Envelope, *, binary: bool = False, retain: bool = False) -> int:
        """Hand a message to the broker's connection and return its size, without waiting for the acknowledgement: its receiver
        knows what it lacks. Waits while too much is unacknowledged.

        Raises:
            LinkLost: There is no connection.
            PayloadTooLarge: The broker takes no such message.
        """
        return (await self.hand(topic, envelope, binary=binary, retain=retain)).size

    async def hand(self, topic: str, envelope: Envelope, *, binary: bool = False, retain: bool = False) -> Handed:
        """As `send`, for who wants to know when the broker has it: a message that waits for a slow link need not be repeated."""
        payload = encode(envelope, binary=binary)
        connection = self.connection
        await connection.room(len(payload), MAX_WAITING)
        taken = connection.publish(topic, payload, retain=retain, expiry_s=_seconds(envelope.ttl_ms))
        return Handed(len(payload), taken)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False, expiry_s: int | None = None) -> None:
        """Send bytes with QoS 1; returns once the broker has them.

        Raises:
            LinkLost: There is no connection, or it broke before: the message may or may not have arrived.
            NotPermitted: The broker's access list forbids it.
        """
        connection = self.connection
        await connection.room(len(payload), MAX_WAITING)
        await connection.publish(topic, payload, retain=retain, expiry_s=expiry_s)

    # --- keeping it ------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        retries = _Retries(self._rng)
        while not self._stopping and self.stopped_because is None:
            ended = await self._once()
            if self._stopping or self.stopped_because is not None:
                return
            if ended.taken_over:
                self._count_takeover()
            delay = retries.delay(self._clock.monotonic(), self._up_since, carried=self._carried)
            log.info("mqtt_down", reason=ended.reason, retry_s=round(delay, 2))
            await self._clock.sleep(delay)

    async def _once(self) -> Ended:
        """Connect and stay until it is over."""
        connection: Connection | None = None
        self._up_since = None
        self._carried = False
        try:
            number = await asyncio.to_thread(self._sessions.next)
            connection = Connection(self._broker, self._arrived, will=self._will(number) if self._will else None)
            await connection.open()
            self._noted = False
            wanted = dict.fromkeys(item for item, _ in self._handlers)
            await connection.subscribe([*wanted, Subscription(self._note)])
            await connection.publish(self._note, json.dumps({"name": self._name, "ep": number}).encode(), retain=True)
            if self.stopped_because is not None:
                return Ended("clone")
            self._sealer = Sealer(number)
            self._connection = connection
            self._connects += 1
            self._up_since = self._clock.monotonic()
            self._up.set()
            self._tell("up", f"connected to {self._broker.host}:{self._broker.port}")
            if self._probe and self.found is None:
                self._probing = asyncio.create_task(self._try_broker(connection), name="mqtt-probe")
            if self._birth is not None:
                await self._birth()
            ended = await connection.ended
            self._tell("down", ended.reason)
        except (NotAuthenticated, NotPermitted) as error:
            self._tell("refused", error.message)
            ended = Ended(error.message)
        except EdgewiseError as error:
            ended = Ended(error.message)
        finally:
            self._up.clear()
            self._connection = None
            if connection is not None:
                await connection.close()
            if self._probing is not None:
                await asyncio.gather(self._probing, return_exceptions=True)
        return ended

    async def _try_broker(self, connection: Connection) -> None:
        """A broker that was found unfit twice is given up: once may have been a connection that broke by itself."""
        try:
            found = await probe_connection(connection, self.uid, self._probed)
        except EdgewiseError as error:
            log.info("mqtt_probe_failed", reason=error.message)
            return
        if found.lacking:
            self._unfit += 1
            if self._unfit == 2:
                self._give_up("unfit", f"The broker cannot be used: {'; '.join(found.lacking)}.")
            else:
                connection.end("the broker seems unfit")
            return
        self.found = found
        if found.weak:
            log.info("mqtt_broker_weak", lacks=", ".join(found.weak))

    def _arrived(self, incoming: Incoming) -> None:
        if incoming.topic == self._note:
            self._read_note(incoming.payload)
            return
        if matches(self._probe_filter, incoming.topic):
            if not self._probed.full():
                self._probed.put_nowait(incoming)
            return
        for subscription, handler in self._handlers:
            if matches(subscription.filter, incoming.topic):
                self._carried = True
                handler(incoming)

    def _read_note(self, payload: bytes) -> None:
        """The note of the session before this one. If another client wrote it between two connections of ours, it has our
        name. Brokers could say so themselves ("session taken over"), but mosquitto 2.0.11 and iotcore just close. On iotcore,
        which sends a session what is retained only once, a clone is not found out; it serves one machine."""
        try:
            name = json.loads(payload)["name"]
        except (ValueError, KeyError, TypeError):
            return  # not ours: a note of another version
        if name == self._name:
            return
        if self._connects == 0:
            self._earlier = name  # of an earlier life, or of a clone that will find our note
        elif name != self._earlier and not self._noted:
            self._noted = True
            self._count_takeover()

    def _count_takeover(self) -> None:
        now = self._clock.monotonic()
        if self._taken and now - self._taken[-1] <= _CLONE_S:
            self._give_up(
                "clone",
                f"Another client uses the name {self.uid!r} at the broker; this one has stopped. Give each device a name of its "
                "own (mqtt.uid) and restart.",
            )
        self._taken.append(now)

    def _give_up(self, kind: EventKind, reason: str) -> None:
        self.stopped_because = reason
        self._tell(kind, reason)
        self._up.set()  # whoever waits for the link hears that it will not come
        if self._connection is not None:
            self._connection.end(kind)

    def _tell(self, kind: EventKind, message: str) -> None:
        (log.info if kind in ("up", "down") else log.error)(f"mqtt_{kind}", message=message)
        if self._on_event is not None:
            self._on_event(LinkEvent(kind, message))


class _Retries:
    """When to connect again: after a random time up to half of what the outage has lasted, one second at least, two minutes
    at most.

    So a short cut costs about a second, and what a broker's outage has cut off together comes back spread over a time that
    grows with the outage: nobody retries in step, and nobody waits longer for a broker than it was away. A connection that
    lived for a second, or that carried a message, ends the outage; one that the broker takes and drops does not.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lost_at: float | None = None

    def delay(self, now: float, up_since: float | None, *, carried: bool = False) -> float:
        """Seconds from `now`, at which an attempt ended; `up_since` is when its connection stood, None if it never did;
        `carried` whether a message came over it."""
        if self._lost_at is None or carried or (up_since is not None and now - up_since >= _STEADY_S):
            self._lost_at = now
        limit = max(_FIRST_DELAY_S, (now - self._lost_at) / 2)
        return self._rng.uniform(0, min(_LONGEST_DELAY_S, limit))


def matches(filter: str, topic: str) -> bool:
    """Whether a topic belongs to a filter; of a shared subscription, to the filter that is shared."""
    if filter.startswith("$share/"):
        filter = filter.split("/", 2)[2]
    wanted, given = filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(given) or level not in ("+", given[index]):
            return False
    return len(wanted) == len(given)


def _seconds(ttl_ms: int | None) -> int | None:
    """MQTT counts whole seconds; rounded up, so that the payload's own limit decides."""
    return None if ttl_ms is None else -(-ttl_ms // 1000)
