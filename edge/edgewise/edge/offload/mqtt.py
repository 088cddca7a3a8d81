"""Jobs over MQTT, where only a broker is reachable: the messages of HTTP, in envelopes, through topics of this device.

The broker may lose anything at any time, so nothing here rests on it. A request is sent again, with the same id, until the cloud
itself answers; a stream is read by places, and what is missing in it is asked for again; a blob is pulled by whoever lacks it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Literal

from pydantic import BaseModel

from edgewise.core.errors import BadMessage, DigestMismatch, EngineFault, LinkLost, NotFound
from edgewise.core.log import get_logger
from edgewise.edge.offload.counted import Counted
from edgewise.edge.offload.inflow import Inflow, Question
from edgewise.edge.offload.partial import Partial
from edgewise.edge.offload.turns import Turns
from edgewise.edge.placement.protocol import Meter
from edgewise.wire import topics
from edgewise.wire.asking import BLOCK, CREDIT, Answer, Ask, BlobBlock, BlobDone, BlobGet, block_at, told
from edgewise.wire.envelope import Envelope, decode
from edgewise.wire.messages import (
    Accepted,
    Blob,
    Chunk,
    CloudInfo,
    Final,
    JobControl,
    JobEvent,
    JobRequest,
    Refused,
)
from edgewise.wire.mqtt.blobs import PAUSES_S as BLOB_PAUSES_S
from edgewise.wire.mqtt.blobs import Pull
from edgewise.wire.mqtt.connection import Connection, Incoming
from edgewise.wire.mqtt.link import Handed, Link
from edgewise.wire.mqtt.tasks import Tasks
from edgewise.wire.stream_log import Place

log = get_logger(__name__)

CONNECT_S = 4.0
ANSWER_S = (1.0, 2.0, 4.0)
"""Seconds that an answer is waited for, once the broker has the request, before it is sent again; and after the last given up."""
_LARGE = 16 * 1024


class MqttTransport(Counted):
    """Implements `offload.transport.Transport`.

    Args:
        link: Of this device's name; it is started with the first message and stopped by `close`.
        meter: Told of what larger messages take.
    """

    def __init__(self, link: Link, *, meter: Meter | None = None) -> None:
        super().__init__()
        self._link = link
        self._meter = meter
        self._answers: dict[str, asyncio.Future[Envelope]] = {}
        self._inflows: dict[str, Inflow] = {}
        self._pulls: dict[str, Pull] = {}
        self._partial = Partial()
        self._blobs = Turns()
        self._offers: dict[str, _Offer] = {}
        self._tasks = Tasks()
        self._dropped = 0
        link.on(topics.down(link.uid), self._arrived)

    def __repr__(self) -> str:
        return f"MqttTransport({self._link.uid})"

    @property
    def name(self) -> Literal["http", "mqtt"]:
        return "mqtt"

    @property
    def dropped(self) -> int:
        """Messages that were malformed or too large."""
        return self._dropped

    async def info(self) -> CloudInfo:
        answer = await self._question(Ask(ask="info"))
        if answer.info is None:
            raise EngineFault("The cloud answered a question over MQTT with something else.")
        return answer.info

    async def submit(self, request: JobRequest) -> Accepted:
        self._open_account(request.key)
        topic = topics.job_request(request.priority, self._link.uid)
        return _accepted(await self._ask(topic, request, key=request.key, ttl_ms=request.ttl_ms))

    async def knows(self, key: str, id: str) -> bool:
        """See `Transport.knows`. An acknowledgement of nothing is a question."""
        question = JobControl(key=key, op="ack")
        try:
            accepted = _accepted(await self._ask(self._control_topic(key), question, key=key))
        except NotFound:
            return False
        if accepted.id == id:
            self._open_account(key)
        return accepted.id == id

    async def events(self, key: str, after: Place) -> AsyncGenerator[Chunk | Final, None]:
        """See `Transport.events`."""
        await self._connect()

        async def resume(place: Place) -> Question:
            control = JobControl(key=key, op="resume", after=str(place), credit=CREDIT)
            envelope = self._link.sealer.seal(control, key=key)
            return Question(envelope.id, (await self._hand(self._control_topic(key), envelope)).taken)

        async def grant(place: Place) -> None:
            control = JobControl(key=key, op="grant", after=str(place), credit=CREDIT)
            await self._hand(self._control_topic(key), self._link.sealer.seal(control, key=key))

        inflow = self._inflows[key] = Inflow(after, self._link.connection.ended, resume, grant)
        try:
            async with aclosing(inflow.events()) as events:
                async for event in events:
                    yield event
        finally:
            if self._inflows.get(key) is inflow:
                del self._inflows[key]

    async def control(self, control: JobControl) -> None:
        _accepted(await self._ask(self._control_topic(control.key), control, key=control.key))
        if control.done:
            self._close_account(control.key)

    async def put_blob(self, content: bytes, media: str) -> Blob:
        blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), media=media)
        async with self._blobs.of(blob.sha256):
            return await self._put(blob, content)

    async def get_blob(self, blob: Blob) -> bytes:
        async with self._blobs.of(blob.sha256):
            return await self._get(blob)

    async def close(self) -> None:
        self._partial.close()
        await self._tasks.end()
        await self._link.stop()

    # --- blobs --------------------------------------------------------------------------------------------------------------

    async def _put(self, blob: Blob, content: bytes) -> Blob:
        offer = self._offers[blob.sha256] = _Offer(blob, content)
        try:
            silent = 0
            while silent < len(BLOB_PAUSES_S):
                await self._question(Ask(ask="blob", blob=blob))
                if await offer.taken(self._link.connection, BLOB_PAUSES_S[silent]):
                    return blob
                silent = 0 if offer.touched else silent + 1
        finally:
            del self._offers[blob.sha256]
        raise LinkLost("The cloud does not take a blob over MQTT.")

    async def _get(self, blob: Blob) -> bytes:
        with self._partial.reading(blob.sha256) as have:
            await self._pull(blob, have)
        content = bytes(have)
        found = hashlib.sha256(content).hexdigest()
        await self._send_blob("done", BlobDone(sha256=blob.sha256), blob.sha256)
        if found != blob.sha256:
            raise DigestMismatch(f"The cloud sent {len(content)} bytes that are not the blob {blob.sha256[:12]}.")
        return content

    async def _pull(self, blob: Blob, have: bytearray) -> None:
        """Add what is missing of it."""
        await self._connect()
        pull = self._pulls[blob.sha256] = Pull(blob, len(have), self._send_get)
        ended = self._link.connection.ended

        def lost(_: object) -> None:
            pull.fail(LinkLost("The link was lost in a blob."))

        ended.add_done_callback(lost)
        try:
            async for piece in pull.pieces():
                have += piece
        finally:
            ended.remove_done_callback(lost)
            del self._pulls[blob.sha256]

    async def _send_get(self, get: BlobGet) -> None:
        await self._send_blob("get", get, get.sha256)

    async def _send_blob(self, step: str, body: BaseModel, sha256: str) -> Handed:
        return await self._hand(topics.blob(self._link.uid, "up", sha256[:32], step), self._link.sealer.seal(body))

    async def _serve(self, get: BlobGet, offer: _Offer) -> None:
        """Send what was asked for; the cloud is not waited for before the broker has it."""
        with offer.serving():
            last: Handed | None = None
            for number in range(get.blocks):
                offset = get.offset + number * BLOCK
                data = offer.content[offset : offset + BLOCK]
                if data:
                    last = await self._send_blob("blk", block_at(offer.blob, data, offset), get.sha256)
            if last is not None:
                await last.taken

    # --- sending ------------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        self._link.start()
        await self._link.wait_connected(CONNECT_S)

    async def _ask(self, topic: str, body: BaseModel, *, key: str | None = None, ttl_ms: int | None = None) -> Envelope:
        """Send until the cloud answers."""
        await self._connect()
        envelope = self._link.sealer.seal(body, key=key, ttl_ms=ttl_ms)
        answer: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        self._answers[envelope.id] = answer
        started = time.monotonic()
        try:
            for patience_s in ANSWER_S:
                size, taken = await self._hand(topic, envelope)
                for awaited, limit_s in ((taken, None), (self._link.connection.ended, patience_s)):
                    both: set[asyncio.Future[Any]] = {answer, awaited}
                    await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    if self._meter is not None and size >= _LARGE:
                        self._meter.sent(size, time.monotonic() - started)
                    return answer.result()
                taken.result()
        finally:
            del self._answers[envelope.id]
        raise LinkLost("The broker is there, but no cloud answers behind it.")

    async def _question(self, ask: Ask) -> Answer:
        answer = (await self._ask(topics.job_request(topics.ASK, self._link.uid), ask)).read(Answer)
        if answer.refused is not None:
            raise told(answer.refused)
        return answer

    async def _hand(self, topic: str, envelope: Envelope) -> Handed:
        handed = await self._link.hand(topic, envelope, binary=True)
        self._sent += handed.size
        self._book(envelope.key, up=handed.size)
        return handed

    def _control_topic(self, key: str) -> str:
        return topics.job_control(self._link.uid, topics.job_id(key))

    # --- receiving ----------------------------------------------------------------------------------------------------------

    def _arrived(self, incoming: Incoming) -> None:
        """One message of the cloud. What is malformed is dropped and counted; what nobody waits for is not looked at."""
        self._received += len(incoming.payload)
        try:
            topic = topics.parse(incoming.topic)
            envelope = decode(incoming.payload)
            answer = self._answers.get(envelope.re or "")
            if answer is not None and not answer.done():
                self._book(envelope.key, down=len(incoming.payload))
                answer.set_result(envelope)
            elif topic.rest[0] == "job" and "event" in envelope.body:  # else an answer that has come twice
                event = envelope.read(JobEvent)
                self._book(event.key, down=len(incoming.payload))
                if event.key in self._inflows:
                    self._inflows[event.key].put(envelope.re, event.event)
            elif topic.rest[0] == "blob":
                self._blob(topic.rest[-1], envelope)
        except BadMessage as error:
            self._dropped += 1
            log.warning("mqtt_message_dropped", topic=incoming.topic[:200], reason=error.message)

    def _blob(self, step: str, envelope: Envelope) -> None:
        if step == "blk":
            block = envelope.read(BlobBlock)
            if block.sha256 in self._pulls:
                self._pulls[block.sha256].put(block)
        elif step == "get":
            get = envelope.read(BlobGet)
            if get.sha256 in self._offers:
                self._tasks.spawn(self._serve(get, self._offers[get.sha256]), "blob")
        else:
            done = envelope.read(BlobDone)
            if done.sha256 in self._pulls and done.refused is not None:
                self._pulls[done.sha256].fail(told(done.refused))
            if done.sha256 in self._offers:
                self._offers[done.sha256].end(done)


class _Offer:
    """A blob that the cloud was told of and pulls."""

    def __init__(self, blob: Blob, content: bytes) -> None:
        self.blob, self.content = blob, content
        self._done: asyncio.Future[BlobDone] = asyncio.get_running_loop().create_future()
        self._serving = 0
        self.touched = False
        """Whether the cloud has asked for something since it was waited for last."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While something of it is on its way to the broker, the cloud is not silent."""
        self._serving += 1
        try:
            yield
        finally:
            self._serving -= 1
            self.touched = True

    def end(self, done: BlobDone) -> None:
        if not self._done.done():
            self._done.set_result(done)

    async def taken(self, connection: Connection, silence_s: float) -> bool:
        """Whether the cloud has it; False after a silence, at whose beginning the cloud may have asked for something.

        Raises:
            LinkLost: The link broke; or the error with which the cloud refused it.
        """
        self.touched = False
        while True:
            both: set[asyncio.Future[Any]] = {self._done, connection.ended}
            await asyncio.wait(both, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
            if self._done.done():
                refused = self._done.result().refused
                if refused is not None:
                    raise told(refused)
                return True
            if connection.ended.done():
                raise LinkLost("The link to the broker was lost in a blob.")
            if not self._serving:
                return False


def _accepted(envelope: Envelope) -> Accepted:
    event = envelope.read(JobEvent).event
    if isinstance(event, Refused):
        raise told(event)
    if not isinstance(event, Accepted):
        raise EngineFault(f"The cloud answered over MQTT with {event.type!r} instead of 'accepted'.")
    return event
