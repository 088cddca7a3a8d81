"""Answer a request for which nobody keeps a connection open: lines of batches, deferred jobs.

It goes the way of every other request, is counted and shown among those in flight, and leaves no run behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fastapi import Request

from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import Prepare, begin, whole_body
from edgewise.api.parse import Caller
from edgewise.api.priority import asked_priority, priority_in_force
from edgewise.api.privacy import asked_privacy, key_label, privacy_in_force
from edgewise.api.requests import RequestRecord
from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.core.priority import Priority, PriorityName
from edgewise.core.privacy import Labels, Privacy, PrivacyName, early_label
from edgewise.pipeline.plan import Place, PolicyName
from edgewise.pipeline.receipts import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattended:
    """Who asked, and under which conditions.

    Attributes:
        id: Names the request in its answer, in the log and to engines elsewhere.
        route: What it is shown as among the requests in flight.
        owner: The salt of whoever asked (`api.context.RequestContext.salt`).
        priority: Deadline class; nothing in the body changes it.
        timeout_s: Longest time for the answer; None for no limit but the service's.
        privacy: Label that key and header gave it when it was asked; None where they gave none.
        policy: How places are chosen; None takes what is configured.
        allowed: Places that may be chosen; empty for all.
        seed: Used where the body names none, so that a request that is begun again gets the same answer; None draws one.
    """

    id: str
    route: str
    owner: str
    priority: Priority
    timeout_s: float | None = None
    privacy: Privacy | None = None
    policy: PolicyName | None = None
    allowed: tuple[Place, ...] = ()
    seed: int | None = None

    @property
    def key(self) -> str:
        """Whom fairness among callers and the list of requests know."""
        return self.owner.removeprefix("key:")


class Endpoint(Protocol):
    """A route that can answer without a connection."""

    @property
    def placed_whole(self) -> bool:
        """Whether all of it runs in places that a request can name; the stages of a pipeline say so for themselves."""

    async def check(self, deps: ApiDependencies, body: Mapping[str, Any], caller: Caller) -> Privacy:
        """Validate a body without running it; the label that its answer would have as far as it is known. Raises
        `EdgewiseError`, naming the field."""

    async def answer(
        self, deps: ApiDependencies, record: RequestRecord, body: Mapping[str, Any], caller: Caller, asked: Unattended
    ) -> Answered:
        """Run it. What it begins is attached to the record, whose owner closes it. Raises `EdgewiseError`."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Attributes:
    body: As the route would have answered it, the receipt included.
    """

    body: dict[str, Any]
    usage: Usage


def unattended_priority(request: Request) -> PriorityName:
    """Background, or what the request's key or header says if that is less urgent: nobody waits."""
    key = context_of(request.scope).key
    priority = priority_in_force(asked_priority(request.headers, key), key, None)
    return max(priority, Priority.BACKGROUND).label


def unattended_privacy(request: Request, labels: Labels) -> PrivacyName | None:
    """The header's label, else the key's, else none; the model that is asked may make it stricter.

    Raises:
        NotPermitted: The header would loosen it.
    """
    label, asked = key_label(context_of(request.scope).key), asked_privacy(request.headers)
    if asked is None:
        return None if label is None else label.label
    return privacy_in_force(asked, labels.strictest(label)).label


def may_pass(error: EdgewiseError) -> bool:
    """Whether the same request may be answered later: a queue, an engine that starts, a full disk, a link that is down."""
    return error.retryable or error.http_status == 507 or error.retry_after_s is not None


async def answer_unattended(
    deps: ApiDependencies, endpoint: Endpoint, asked: Unattended, body: Mapping[str, Any]
) -> Answered:
    """The answer to the body of one request. Cancelling this ends its run within a step.

    Raises:
        EdgewiseError: It has no answer; `may_pass` says whether to try again.
    """
    limits, clock = deps.limits, deps.clock
    timeouts = [limit for limit in (limits.request_timeout_s, asked.timeout_s) if limit is not None]
    caller = Caller(
        request_id=asked.id,
        salt=asked.owner,
        timeout_s=min(timeouts, default=None),
        max_sequences=limits.max_sequences,
        asked_priority=asked.priority,
        model_priority=limits.model_priority,
        label=asked.privacy,
        labels=deps.labels,
        policy=asked.policy,
    )
    early_label.set(caller.early_label)
    record = deps.requests.enter(id=asked.id, route=asked.route, key=asked.key, priority=asked.priority)
    status = 200
    try:
        answered = await endpoint.answer(deps, record, body, caller, asked)
        seconds = clock.monotonic() - record.started_monotonic
        deps.metrics.answered(record.model or "", answered.usage, seconds)
        return answered
    except EdgewiseError as error:
        status, record.error = error.http_status, error.code
        raise
    finally:
        await deps.requests.end(record, status=status)


def refuse_stream(stream: bool | None) -> None:
    if stream:
        raise InvalidRequest("'stream' is not allowed where nobody reads the stream.", param="stream")


@dataclass(frozen=True, slots=True)
class TextEndpoint:
    """A text route, by what it makes of a body."""

    prepare: Prepare
    placed_whole: bool = True

    async def check(self, deps: ApiDependencies, body: Mapping[str, Any], caller: Caller) -> Privacy:
        prepared = await self.prepare(deps, dict(body), caller)
        refuse_stream(prepared.form.stream)
        return prepared.task.privacy

    async def answer(
        self, deps: ApiDependencies, record: RequestRecord, body: Mapping[str, Any], caller: Caller, asked: Unattended
    ) -> Answered:
        prepared = await self.prepare(deps, dict(body), caller)
        refuse_stream(prepared.form.stream)
        task = prepared.task
        seed = asked.seed if task.sampling.seed is None else task.sampling.seed
        sampling = replace(task.sampling, seed=seed)
        task = replace(task, key=asked.key, allowed=asked.allowed, sampling=sampling)
        run = await begin(deps, record, replace(prepared, task=task))
        answer = await whole_body(run, prepared.write(run, int(deps.clock.time())))
        return Answered(answer, run.usage())
