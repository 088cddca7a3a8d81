"""/edgewise/v1/jobs of the device."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.context import RequestContext, context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import caller, read_body
from edgewise.api.openapi import request_body
from edgewise.api.paging import page, read_page
from edgewise.api.privacy import asked_policy
from edgewise.api.requests import shutting_down
from edgewise.api.responses import json_response
from edgewise.api.schemas import validate
from edgewise.api.unattended import may_pass, unattended_priority, unattended_privacy
from edgewise.core.errors import EdgewiseError, InvalidRequest, ModelNotFound
from edgewise.core.privacy import Privacy, PrivacyName, privacy_of
from edgewise.edge.outbox.addresses import Addresses
from edgewise.edge.outbox.endpoints import Endpoints
from edgewise.edge.outbox.job import Order
from edgewise.edge.outbox.runner import ROUTE, Runner
from edgewise.edge.outbox.shown import show_job
from edgewise.edge.outbox.store import Store
from edgewise.pipeline.plan import Place
from edgewise.pipeline.seeds import draw_seed
from edgewise.wire.messages import Key

JOB = ROUTE + "/{job_id}"


class JobBody(BaseModel):
    """Attributes:
    url: Route that would answer `body` at once.
    deliver: "poll", "mqtt" or the address of a webhook.
    ttl_ms: Milliseconds after which the job is expired; the longest that is allowed by default.
    where: Places where it may run; all by default.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    url: str
    body: dict[str, Any]
    deliver: Annotated[str, Field(min_length=1, max_length=2048)] = "poll"
    key: Key | None = None
    ttl_ms: Annotated[int, Field(gt=0)] | None = None
    where: Annotated[list[Place], Field(min_length=1, max_length=3)] | None = None


class Intake:
    """Checks what is left here as far as it can be checked now.

    Args:
        longest_s: Longest time for which a job may wait.
        cloud: Whether there is a cloud, which may know models that are not known here.
    """

    def __init__(
        self,
        deps: ApiDependencies,
        endpoints: Endpoints,
        addresses: Addresses,
        *,
        longest_s: float,
        cloud: bool,
    ) -> None:
        self._deps = deps
        self._endpoints = endpoints
        self._addresses = addresses
        self._longest_s = longest_s
        self._cloud = cloud

    async def read(self, request: Request) -> Order:
        """Raises `EdgewiseError`, naming the field."""
        if self._deps.draining:
            raise shutting_down()
        body = validate(JobBody, await read_body(request, self._deps))
        context = context_of(request.scope)
        label = unattended_privacy(request, self._deps.labels)
        self._addresses.check(body.deliver, await self._label(context, body, label))
        return Order(
            owner=context.salt,
            url=body.url,
            body=body.body,
            deliver=body.deliver,
            key=body.key,
            priority=unattended_priority(request),
            privacy=label,
            policy=asked_policy(request.headers),
            allowed=tuple(body.where or ()),
            seed=draw_seed(),
            ttl_s=self._ttl_s(body.ttl_ms),
        )

    def _ttl_s(self, ttl_ms: int | None) -> float:
        if ttl_ms is None:
            return self._longest_s
        if ttl_ms > self._longest_s * 1000:
            raise InvalidRequest(
                f"'ttl_ms' is {ttl_ms}: a job may wait for at most {self._longest_s * 1000:.0f} ms (outbox.ttl_s).",
                param="ttl_ms",
            )
        return ttl_ms / 1000

    async def _label(self, context: RequestContext, body: JobBody, label: PrivacyName | None) -> Privacy:
        """The label of the answer, after the request has been checked as its route would; what may pass is no reason to refuse
        it, nor is a model that only the cloud may know."""
        endpoint, labels = self._endpoints.find(body.url), self._deps.labels
        if body.where is not None and not endpoint.placed_whole:
            raise InvalidRequest("'where' is not for pipelines: each stage says where it may run.", param="where")
        own = None if label is None else privacy_of(label)
        try:
            answer = await endpoint.check(self._deps, body.body, caller(context, self._deps))
        except EdgewiseError as error:
            if not may_pass(error) and not (self._cloud and isinstance(error, ModelNotFound)):
                raise
            return labels.strictest(own, labels.model((str(body.body.get("model")),)))
        return min(answer, labels.strictest(own))


def jobs_router(intake: Intake, store: Store, runner: Runner) -> APIRouter:
    router = APIRouter(tags=["Edgewise"])

    @router.post(ROUTE, status_code=202, openapi_extra=request_body(JobBody))
    async def leave_job(request: Request) -> Response:
        job, _ = await store.add(await intake.read(request))
        status = 200 if job.ended else 202
        return json_response(show_job(job), status, headers={"location": f"{ROUTE}/{job.id}"})

    @router.get(ROUTE)
    async def list_jobs(request: Request) -> Response:
        wanted = read_page(request.query_params, default=20, largest=100)
        return json_response(page([show_job(job) for job in await store.of_owner(_owner(request))], wanted))

    @router.get(JOB)
    async def show_one_job(request: Request, job_id: str) -> Response:
        return json_response(show_job(await store.get(_owner(request), job_id)))

    @router.post(JOB + "/cancel")
    async def cancel_job(request: Request, job_id: str) -> Response:
        job = await store.cancel(_owner(request), job_id)
        runner.drop(job.id)
        return json_response(show_job(job))

    @router.delete(JOB)
    async def delete_job(request: Request, job_id: str) -> Response:
        await store.delete(_owner(request), job_id)
        return json_response({"id": job_id, "object": "edgewise.job", "deleted": True})

    return router


def _owner(request: Request) -> str:
    """Whose jobs a request may see: those of its key, or of callers without one."""
    return context_of(request.scope).salt
