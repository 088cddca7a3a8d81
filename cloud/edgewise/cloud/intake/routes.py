"""The intake over HTTP: docs/wire.md, "Jobs over HTTP". Keys and their scopes are looked at before a request arrives here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from edgewise.api.body import read_bytes
from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import NotJson, error_response
from edgewise.api.responses import json_response
from edgewise.api.sse import EventStream, kept_alive, sse
from edgewise.cloud.intake.intake import Intake
from edgewise.cloud.jobs.records import Job
from edgewise.cloud.tenants import ANONYMOUS
from edgewise.cloud.work import first_problem
from edgewise.core.errors import InvalidRequest, NotPermitted, QueueFull
from edgewise.wire.codec import Limits, decode
from edgewise.wire.http import CBOR, CLOUD, JOBS, JSON, KEEPALIVE_S
from edgewise.wire.messages import Chunk, Final, JobControl, JobRequest, Message
from edgewise.wire.stream_log import START, Place, parse_place

MessageT = TypeVar("MessageT", bound=Message)

_CONTROL_BYTES = 4096
_SETTING = "intake.max_request_bytes"


def jobs_router(deps: ApiDependencies, intake: Intake, *, max_request_bytes: int) -> APIRouter:
    router = APIRouter(tags=["Cloud"])
    job = JOBS + "/{id}"

    async def read(
        request: Request, kind: type[MessageT], limit: int, defaults: Mapping[str, Any], setting: str | None = None
    ) -> MessageT:
        body = await read_bytes(request, max_bytes=limit, timeout_s=deps.limits.body_timeout_s, setting=setting)
        return read_message(kind, {**defaults, **(_decoded(request, body, limit) if body else {})})

    @router.get(CLOUD)
    async def cloud(request: Request) -> Response:
        """What this cloud answers with, and how long its queue is."""
        key = context_of(request.scope).key
        info = await intake.info(tenant_of(request))
        return _json(info if key is None else info.model_copy(update={"device": key.device}))

    @router.post(JOBS)
    async def submit(request: Request) -> Response:
        """Take a job: 202, also for one that is there already."""
        job_request = _of_its_device(request, await read(request, JobRequest, max_request_bytes, {}, _SETTING))
        try:
            accepted = await intake.submit(tenant_of(request), job_request)
        except QueueFull as error:
            context_of(request.scope).error = error.code
            response = error_response(error, request.scope)
            response.headers["x-edgewise-queue-s"] = f"{await intake.queue_s(job_request):.3f}"
            return response
        return _json(accepted, 202)

    @router.get(job)
    async def show(request: Request, id: str) -> Response:
        return json_response(show_job(await intake.get(tenant_of(request), id)))

    @router.get(job + "/stream")
    async def stream(request: Request, id: str) -> Response:
        """The stream from a place on, up to its final record."""
        tenant, after = tenant_of(request), _asked_place(request)
        await intake.check_place(tenant, id, after)
        events = kept_alive(
            _events(intake.events(tenant, id, after)),
            silence_s=min(KEEPALIVE_S, deps.limits.keepalive_s),
            until=deps.requests.wait_drain(),
        )
        return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)

    @router.post(job + "/ack")
    async def ack(request: Request, id: str) -> Response:
        """Everything before a place has arrived; with `done` the final record too."""
        return await control(request, id, "ack")

    @router.post(job + "/cancel")
    async def cancel(request: Request, id: str) -> Response:
        return await control(request, id, "cancel")

    async def control(request: Request, id: str, op: str) -> Response:
        asked = await read(request, JobControl, _CONTROL_BYTES, {"key": "-", "op": op})
        if asked.op != op:
            raise InvalidRequest(f"'op' is '{asked.op}', but the path says {op}.", param="op")
        await intake.control(tenant_of(request), id, asked)
        return Response(status_code=204)

    return router


def tenant_of(request: Request) -> str:
    """Whose jobs and blobs a request may see."""
    key = context_of(request.scope).key
    return ANONYMOUS if key is None else key.name


def _of_its_device(request: Request, job: JobRequest) -> JobRequest:
    """A key that is bound to a device speaks for that one only."""
    key = context_of(request.scope).key
    if key is None or key.device is None or key.device == job.device:
        return job
    if job.device:
        raise NotPermitted(f"This key is bound to the device '{key.device}': it asks for no other.", param="device")
    return job.model_copy(update={"device": key.device})


def read_message(kind: type[MessageT], values: Mapping[str, Any]) -> MessageT:
    """The message that a map holds. Raises `InvalidRequest`, naming the first wrong field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise first_problem(error) from error


def show_job(job: Job) -> dict[str, Any]:
    """A job as its tenant sees it; `offset` is where its stream ends so far, `first` where what is kept of it begins."""
    return {
        "id": job.id,
        "key": job.key,
        "device": job.device,
        "model": job.model,
        "kind": job.kind,
        "priority": job.priority.label,
        "state": job.state,
        "attempt": job.attempt,
        "first": job.first,
        "offset": job.count,
        "kept": job.kept,
        "received_at": round(job.received_at, 3),
        "finished_at": None if job.finished_at is None else round(job.finished_at, 3),
        "final": None if job.final is None else job.final.model_dump(mode="json", exclude_none=True),
    }


def _decoded(request: Request, body: bytes, limit: int) -> dict[str, Any]:
    media = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media not in (JSON, CBOR):
        raise NotJson(f"The content type is {media[:80] or 'missing'}: send {JSON} or {CBOR}.")
    return decode(body, Limits(bytes=limit))


def _asked_place(request: Request) -> Place:
    """`from`, or where a client that reconnects by itself was."""
    text = request.query_params.get("from", request.headers.get("last-event-id", ""))
    return parse_place(text) if text else START


async def _events(events: AsyncGenerator[Chunk | Final, None]) -> AsyncGenerator[bytes, None]:
    """Each event's id is the place after it, so that a client which sends its last one misses and repeats nothing."""
    async with aclosing(events):
        async for event in events:
            yield sse(event.model_dump(mode="json", exclude_none=True), id=str(event.place))


def _json(message: Message, status: int = 200) -> Response:
    return json_response(message.model_dump(mode="json", exclude_none=True), status)
