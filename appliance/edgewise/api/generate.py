"""Answer one generation request: body to task, task to run, run to events or one body. Every text route goes this way."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from edgewise.api.body import read_json
from edgewise.api.context import RequestContext, context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.faults import with_faults
from edgewise.api.parse import AnswerForm, Caller
from edgewise.api.priority import asked_priority, priority_in_force
from edgewise.api.privacy import asked_policy, asked_privacy, key_label
from edgewise.api.requests import RequestRecord
from edgewise.api.responses import json_response
from edgewise.api.sse import EventStream, attended
from edgewise.api.writers import Writer
from edgewise.core.errors import InvalidRequest
from edgewise.core.privacy import early_label
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.run import Run, RunObserver, start_run
from edgewise.pipeline.task import ChatInput, Task

RECEIPT_HEADER = "X-Edgewise-Receipt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A validated request.

    Attributes:
        write: Makes the answer's writer; the number is the time of creation in seconds since the epoch.
    """

    task: Task
    form: AnswerForm
    write: Callable[[Run, int], Writer]


Prepare = Callable[[ApiDependencies, dict[str, Any], Caller], Awaitable[Prepared]]
"""What each text route brings: its body to a `Prepared`. Raises `EdgewiseError`, naming the field."""


def admit(request: Request, deps: ApiDependencies, route: str) -> RequestContext:
    """Take a place among the requests in flight; the outermost middleware gives it back."""
    context = context_of(request.scope)
    key = None if context.key is None else context.key.name
    context.priority = asked_priority(request.headers, context.key)
    context.privacy = asked_privacy(request.headers)
    context.policy = asked_policy(request.headers)
    priority = priority_in_force(context.priority, context.key, None)
    context.record = deps.requests.enter(id=context.id, route=route, key=key, priority=priority)
    deps.metrics.in_flight.set(deps.requests.open)
    return context


async def read_body(request: Request, deps: ApiDependencies) -> dict[str, Any]:
    """The JSON body, within its limits."""
    limits = deps.limits
    reading = read_json(
        request, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s, setting="limits.max_body_bytes"
    )
    return await deps.requests.until_cut(reading)


def caller(context: RequestContext, deps: ApiDependencies) -> Caller:
    """Who asks for what; from here on its label is known to whoever opens a model for it."""
    limits = deps.limits
    asking = Caller(
        request_id=context.id,
        salt=context.salt,
        key=context.key,
        asked_priority=context.priority,
        model_priority=limits.model_priority,
        label=key_label(context.key),
        asked_privacy=context.privacy,
        labels=deps.labels,
        policy=context.policy,
        pressure=deps.pressure,
        timeout_s=limits.request_timeout_s,
        max_sequences=limits.max_sequences,
    )
    early_label.set(asking.early_label)
    return asking


async def answer(request: Request, deps: ApiDependencies, route: str, prepare: Prepare) -> Response:
    """The whole way of one request.

    Raises:
        EdgewiseError: Anything that is known before the first byte.
    """
    context = admit(request, deps, route)
    body = await read_body(request, deps)
    return await generate(request, deps, await prepare(deps, body, caller(context, deps)))


async def generate(request: Request, deps: ApiDependencies, prepared: Prepared) -> Response:
    """The answer to a validated request.

    Raises:
        EdgewiseError: Anything that is known before the first byte.
    """
    context = context_of(request.scope)
    assert context.record is not None
    task, form = prepared.task, prepared.form
    receipt_header = wants_receipt_header(request, stream=form.stream)
    context.facts["model"] = task.model.name
    if deps.log_content:
        context.facts |= _asked(task) | {"answer": context.transcript}
    run = await attended(request.receive, deps.requests.until_cut(begin(deps, context.record, prepared)))
    writer = prepared.write(run, int(deps.clock.time()))
    if form.stream:
        events = stream_events(run, writer, context, keepalive_s=deps.limits.keepalive_s)
        return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)
    body = await attended(request.receive, whole_body(run, writer, context.keep_text))
    headers = {RECEIPT_HEADER: json.dumps(body["edgewise"])} if receipt_header else None
    return json_response(body, headers=headers)


async def begin(deps: ApiDependencies, record: RequestRecord, prepared: Prepared) -> Run:
    """Start and attach in one turn: whoever cancels this, a run that has begun is known to the record's owner, who closes it."""
    task = replace(prepared.task, whole=not prepared.form.stream)
    record.stream = prepared.form.stream
    record.model = task.model.name
    run = await start_task(deps, task)
    deps.requests.attach(record, run)
    return run


async def start_task(deps: ApiDependencies, task: Task) -> Run:
    """`start_run` with this service's planner, hooks, metrics and receipts; what hangs on messages is fetched before."""
    hold = deps.media.held.hold()

    def ended(outcome: Outcome) -> None:
        hold.close()
        deps.receipts.ended(outcome)

    try:
        task = await deps.media.gather(task, hold)
        observer: RunObserver = _Observer(deps, task.model.name)
        run = await start_run(
            task,
            deps.planner,
            clock=deps.clock.monotonic,
            observer=observer,
            hooks=deps.hooks,
            on_end=ended,
        )
    except BaseException:
        hold.close()
        raise
    deps.recent.note(task)
    return run


def wants_receipt_header(request: Request, *, stream: bool) -> bool:
    """`X-Edgewise-Receipt: header` asks for the receipt in the answer's header of that name, besides the one in the body."""
    value = request.headers.get(RECEIPT_HEADER)
    if value is None:
        return False
    if value.strip().lower() != "header":
        raise InvalidRequest(f"The header '{RECEIPT_HEADER}' must be 'header' or absent.", param=RECEIPT_HEADER)
    if stream:
        raise InvalidRequest(
            f"The header '{RECEIPT_HEADER}' cannot be honoured with 'stream': headers leave before the answer is made. The "
            "last event of the stream has the receipt.",
            param=RECEIPT_HEADER,
        )
    return True


def _asked(task: Task) -> dict[str, Any]:
    """The task's input under a name that the log knows as content."""
    if isinstance(task.input, ChatInput):
        return {"messages": list(task.input.messages)}
    return {"prompts": list(task.input.prompts)}


async def whole_body(run: Run, writer: Writer, keep: Callable[[int, str], None] | None = None) -> dict[str, Any]:
    """The answer as one body; `keep` is shown each piece's sequence and text."""
    async for chunk in run.chunks():
        writer.gather(chunk)
        if keep is not None:
            keep(chunk.sequence, chunk.text)
    await writer.settle()
    return writer.body()


def stream_events(
    run: Run, writer: Writer, context: RequestContext, *, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    return with_faults(_answer_events(run, writer, context, keepalive_s), context, writer.failure)


async def _answer_events(
    run: Run, writer: Writer, context: RequestContext, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    for event in writer.opening():
        yield event
    while not run.done:
        chunk = await run.receive(keepalive_s)
        if chunk is None:
            yield writer.keep_alive
            continue
        events: list[bytes] = []
        while chunk is not None:  # what has come together is sent together
            context.keep_text(chunk.sequence, chunk.text)
            events += writer.piece(chunk)
            chunk = run.at_hand()
        if events:
            yield b"".join(events)
    await writer.settle()
    yield b"".join(writer.closing())


class _Observer:
    """Feeds a run's pace to the metrics and its tokens to readiness."""

    def __init__(self, deps: ApiDependencies, model: str) -> None:
        self._readiness = deps.readiness
        self._model = model
        self._ttft = deps.metrics.ttft.labels(model)
        self._itl = deps.metrics.itl.of(model)

    def first_token(self, seconds: float, /) -> None:
        self._ttft.observe(seconds)
        self._readiness.note_token(self._model)

    def next_tokens(self, gaps: Sequence[float], /) -> None:
        self._itl.add(gaps)
        self._readiness.note_token(self._model)
