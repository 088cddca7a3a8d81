"""The intake over MQTT: the same calls as over HTTP, from the topics of devices (docs/wire.md).

The tenant follows from the device's name in the topic (`tenants.tenant_of_device`). That is safe because the broker knows users
and lets each write to topics of its own name only (`systemd/mosquitto.acl`); on a broker without an access list everybody can
be everybody.

One service listens behind a broker (`mqtt_duty`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from fastapi import APIRouter
from pydantic import BaseModel

from edgewise.cloud.blobs import BlobStore
from edgewise.cloud.jobs.records import Job
from edgewise.cloud.mqtt_duty import HEARD_S, Duty
from edgewise.cloud.mqtt_streams import Outflow, Outflows
from edgewise.core.errors import BadMessage, EdgewiseError, InvalidRequest, QueueFull, StorageError
from edgewise.core.log import get_logger
from edgewise.wire import topics
from edgewise.wire.asking import BLOCK, Answer, Ask, BlobBlock, BlobDone, BlobGet, block_at, refusal
from edgewise.wire.envelope import Envelope, decode
from edgewise.wire.messages import Accepted, Blob, Chunk, CloudInfo, Event, Final, JobControl, JobEvent, JobRequest
from edgewise.wire.mqtt.blobs import Pull
from edgewise.wire.mqtt.connection import Incoming
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.tasks import Tasks
from edgewise.wire.stream_log import START, Place, parse_place

log = get_logger(__name__)

USER = "edgewise-cloud"
"""Its user at the broker, where none is configured; the access list gives this one all topics."""
_TELL_S = 10.0  # dropped messages of one reason are told so often at most
_BACK_S = 600.0


class Desk(Protocol):
    """What is needed of `intake.intake.Intake`."""

    blobs: BlobStore

    async def info(self, tenant: str) -> CloudInfo: ...

    async def submit(self, tenant: str, request: JobRequest) -> Accepted: ...

    async def find(self, tenant: str, device: str, key: str) -> Job: ...

    async def check_place(self, tenant: str, id: str, after: Place) -> Job: ...

    def events(self, tenant: str, id: str, after: Place = START) -> AsyncGenerator[Chunk | Final, None]: ...

    async def control(self, tenant: str, id: str, control: JobControl) -> Job: ...


class MqttIntake:
    """Implements `serving.service.Part`.

    Args:
        link: To the broker; started and stopped here.
        tenant: Whose jobs and blobs a device may see, by its name; asked for every message. Raises `NotAuthenticated`.
        dropped: Called for each message that is malformed or too large.
        emit: Told of them, not more often than every ten seconds for one reason; and of another service that is here already.
        heard_s: See `mqtt_duty.HEARD_S`.
    """

    def __init__(
        self,
        desk: Desk,
        link: Link,
        *,
        tenant: Callable[[str], str],
        dropped: Callable[[], None] = lambda: None,
        emit: Callable[[str, str], object] = lambda _kind, _message: None,
        heard_s: float = HEARD_S,
    ) -> None:
        self._desk = desk
        self._link = link
        self._tenant = tenant
        self._count, self._emit = dropped, emit
        self._dropped: Counter[str] = Counter()
        self._told: dict[str, float] = {}
        self._tasks = Tasks()
        self._leaving: asyncio.Task[None] | None = None
        self._flows = Outflows()
        self._pulls: dict[tuple[str, str], Pull] = {}
        self._duty = Duty(link, self._stand_down, heard_s=heard_s)
        for kind in topics.CLASSES:
            link.on(topics.job_requests(kind), self._handler(self._submit))
        link.on(topics.job_requests(topics.ASK), self._handler(self._answer))
        link.on(topics.up("job"), self._handler(self._control))
        link.on(topics.up("blob"), self._blob)

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    @property
    def dropped(self) -> Counter[str]:
        """Messages that were not acted on, by reason."""
        return self._dropped

    def start(self) -> None:
        self._link.start()
        self._duty.start()

    async def stop(self) -> None:
        await self._duty.stop()
        await self._flows.stop()
        await self._tasks.end()
        if self._leaving is not None:
            await self._leaving
        await self._link.stop()

    # --- messages -----------------------------------------------------------------------------------------------------------

    def _handler(self, work: Callable[[str, str, Envelope], Awaitable[None]]) -> Callable[[Incoming], None]:
        """A handler that reads a message and has `work` done with (device, level of the topic that answers go to, message)."""

        def handle(incoming: Incoming) -> None:
            opened = self._open(incoming)
            if opened is None:
                return
            topic, envelope = opened
            job = topic.rest[-1] if topic.way == "up" else topics.job_id(envelope.key or envelope.id)
            if self._tasks.spawn(self._guarded(work, topic.uid, job, envelope), "request") is None:
                self._drop("busy", f"more than the service can take at once, from {topic.uid}")

        return handle

    def _open(self, incoming: Incoming) -> tuple[topics.Topic, Envelope] | None:
        if incoming.retain:  # mosquitto 2.0.11 hands retained requests to shared subscribers: old ones, acted on again
            self._drop("retained", f"a request on {incoming.topic[:100]} was retained")
            return None
        try:
            return topics.parse(incoming.topic), decode(incoming.payload)
        except BadMessage as error:
            self._drop(error.code, f"{incoming.topic[:100]}: {error.message}")
            return None

    async def _guarded(
        self, work: Callable[[str, str, Envelope], Awaitable[None]], uid: str, job: str, envelope: Envelope
    ) -> None:
        """Do it; a refusal goes back to the device."""
        if not await self._duty.wait():
            return
        try:
            await work(uid, job, envelope)
        except BadMessage as error:
            self._drop(error.code, f"from {uid}: {error.message}")
        except EdgewiseError as error:
            await self._reply(uid, job, envelope, JobEvent(key=envelope.key or "-", event=refusal(error)))

    def _drop(self, reason: str, message: str) -> None:
        self._dropped[reason] += 1
        self._count()
        now = time.monotonic()
        if now - self._told.get(reason, -_TELL_S) >= _TELL_S:
            self._told[reason] = now
            log.warning("mqtt_message_dropped", reason=reason, message=message, count=self._dropped[reason])
            self._emit("mqtt_message_dropped", f"A message was dropped: {message}")

    def _stand_down(self, reason: str) -> None:
        log.error("mqtt_second_cloud", message=reason)
        self._emit("mqtt_second_cloud", reason)
        self._leaving = asyncio.create_task(self._leave(), name="mqtt-leave")

    async def _leave(self) -> None:
        await self._flows.stop()
        await self._link.stop()

    async def _reply(self, uid: str, job: str, to: Envelope, body: BaseModel) -> None:
        await self._send(topics.job_events(uid, job), body, re=to.id, key=to.key)

    async def _send(self, topic: str, body: BaseModel, *, re: str | None = None, key: str | None = None) -> None:
        await self._link.send(topic, self._link.sealer.seal(body, re=re, key=key), binary=True)

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    async def _submit(self, uid: str, job: str, envelope: Envelope) -> None:
        request = envelope.read(JobRequest).model_copy(update={"device": uid})
        accepted = await self._desk.submit(self._tenant(uid), request)
        await self._reply(uid, job, envelope, JobEvent(key=request.key, event=accepted))

    async def _answer(self, uid: str, job: str, envelope: Envelope) -> None:
        ask = envelope.read(Ask)
        try:
            if ask.ask == "info":
                answer = Answer(info=await self._desk.info(self._tenant(uid)))
            else:
                self._pull(uid, ask.blob)
                answer = Answer()
        except EdgewiseError as error:
            answer = Answer(refused=refusal(error))
        await self._reply(uid, job, envelope, answer)

    async def _control(self, uid: str, job: str, envelope: Envelope) -> None:
        control = envelope.read(JobControl)
        if control.op == "grant":
            flow = self._flows.get(uid, control.key)
            if flow is not None:
                flow.grant(parse_place(control.after, param="after"), control.credit)
            return
        tenant = self._tenant(uid)
        found = await self._desk.find(tenant, uid, control.key)
        if control.op == "resume":
            found = await self._resume(uid, found, control, envelope)
        else:
            found = await self._desk.control(tenant, found.id, control)
        accepted = Accepted(id=found.id, state=found.state, attempt=found.attempt, offset=found.count)
        await self._reply(uid, job, envelope, JobEvent(key=control.key, event=accepted))

    async def _resume(self, uid: str, job: Job, control: JobControl, envelope: Envelope) -> Job:
        after = parse_place(control.after, param="after")
        found = await self._desk.check_place(job.tenant, job.id, after)
        flow = self._flows.get(uid, control.key)
        if flow is not None and (not flow.older(envelope) or flow.goes_on(envelope, after, control.credit)):
            return found  # delivered twice, or late; or the device lacks nothing
        if flow is None and self._flows.full:
            raise QueueFull("Too many streams go out over MQTT at once: try again shortly.", retry_after_s=5.0)
        topic = topics.job_events(uid, topics.job_id(control.key))

        async def send(question: str, event: Event) -> None:
            await self._send(topic, JobEvent(key=control.key, event=event), re=question)

        source = self._desk.events(job.tenant, job.id, after)
        flow = Outflow(envelope, after, control.credit, source, send, self._back)
        await self._flows.begin(uid, control.key, flow)
        return found

    async def _back(self) -> None:
        await self._link.wait_connected(_BACK_S)

    # --- blobs --------------------------------------------------------------------------------------------------------------

    def _blob(self, incoming: Incoming) -> None:
        opened = self._open(incoming)
        if opened is None or self._duty.stood_down:
            return
        topic, envelope = opened
        try:
            if topic.rest[-1] == "get":
                get = envelope.read(BlobGet)
                self._tasks.spawn(self._serve(topic.uid, get), "blob")
            elif topic.rest[-1] == "blk":
                block = envelope.read(BlobBlock)
                pull = self._pulls.get((topic.uid, block.sha256))
                if pull is not None:
                    pull.put(block)
        except BadMessage as error:
            self._drop(error.code, f"from {topic.uid}: {error.message}")

    def _pull(self, uid: str, blob: Blob | None) -> None:
        """Begin to pull a blob that a device offers, unless that goes on already."""
        if blob is None:
            raise InvalidRequest("A blob is offered with its hash and size.", param="blob")
        if (uid, blob.sha256) in self._pulls:
            return
        tenant = self._tenant(uid)
        start = self._desk.blobs.received(tenant, blob.sha256)

        async def ask(get: BlobGet) -> None:
            await self._send(topics.blob(uid, "dn", blob.sha256[:32], "get"), get)

        pull = Pull(blob, start, ask)
        if self._tasks.spawn(self._take(uid, tenant, pull, start), "pull") is None:
            raise QueueFull("Too many blobs come in over MQTT at once: try again shortly.", retry_after_s=5.0)
        self._pulls[uid, blob.sha256] = pull

    async def _take(self, uid: str, tenant: str, pull: Pull, start: int) -> None:
        store, blob, sha256 = self._desk.blobs, pull.blob, pull.blob.sha256
        try:
            await store.write(tenant, sha256, pull.pieces(), start=start, total=blob.bytes, media=blob.media)
            done = BlobDone(sha256=sha256)
        except EdgewiseError as error:
            done = BlobDone(sha256=sha256, refused=refusal(error))
        finally:
            del self._pulls[uid, sha256]
        await self._send(topics.blob(uid, "dn", sha256[:32], "done"), done)

    async def _serve(self, uid: str, get: BlobGet) -> None:
        store = self._desk.blobs
        try:
            tenant = self._tenant(uid)
            blob = await store.find(tenant, get.sha256)
            path = store.path(tenant, get.sha256)
            for number in range(get.blocks):
                offset = get.offset + number * BLOCK
                if offset >= blob.bytes:
                    return
                data = await asyncio.to_thread(_slice, path, offset)
                await self._send(topics.blob(uid, "dn", get.sha256[:32], "blk"), block_at(blob, data, offset))
        except EdgewiseError as error:
            done = BlobDone(sha256=get.sha256, refused=refusal(error))
            await self._send(topics.blob(uid, "dn", get.sha256[:32], "done"), done)


def _slice(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(BLOCK)
    except OSError as error:
        raise StorageError(f"A blob cannot be read: {error}") from error
