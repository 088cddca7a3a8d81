"""Answer one generation request: start the run, then write it as events or as one body."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from edgewise.api.context import RequestContext, context_of
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import error_body, internal_error
from edgewise.api.parse import AnswerForm, Caller
from edgewise.api.requests import RequestRecord
from edgewise.api.responses import json_response
from edgewise.api.shapes import Gathered, Shape, usage_object
from edgewise.api.sse import DONE, KEEP_ALIVE, EventStream, attended, sse
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.pipeline.run import Run, RunObserver, start_run
from edgewise.pipeline.task import ChatInput, Task

log = get_logger(__name__)
MakeShape = Callable[[Run, AnswerForm, int], Shape]


def admit(request: Request, deps: ApiDependencies, route: str) -> RequestContext:
    """Take a place among the requests in flight; the outermost middleware gives it back."""
    context = context_of(request.scope)
    key = None if context.key is None else context.key.name
    context.record = deps.requests.enter(id=context.id, route=route, key=key)
    deps.metrics.in_flight.set(deps.requests.open)
    return context


def caller(context: RequestContext, deps: ApiDependencies) -> Caller:
    limits = deps.limits
    return Caller(
        request_id=context.id,
        salt=context.salt,
        timeout_s=limits.request_timeout_s,
        max_sequences=limits.max_sequences,
    )


async def generate(
    request: Request, deps: ApiDependencies, task: Task, form: AnswerForm, make_shape: MakeShape
) -> Response:
    """The answer to a validated task.

    Raises:
        EdgewiseError: Anything that is known before the first byte.
    """
    context = context_of(request.scope)
    assert context.record is not None
    context.record.stream = form.stream
    context.record.model = task.model.name
    context.facts["model"] = task.model.name
    if deps.log_content:
        context.facts |= _asked(task) | {"answer": context.transcript}
    observer = _Observer(deps, task.model.name)
    begin = _begin(deps, context.record, task, observer)
    run = await attended(request.receive, deps.requests.until_cut(begin))
    shape = make_shape(run, form, int(deps.clock.time()))
    if form.stream:
        events = stream_events(run, shape, form, context, keepalive_s=deps.limits.keepalive_s)
        return EventStream(events, send_timeout_s=deps.limits.send_timeout_s)
    return json_response(await attended(request.receive, _whole_body(run, shape, context)))


async def _begin(deps: ApiDependencies, record: RequestRecord, task: Task, observer: RunObserver) -> Run:
    """Start and attach in one turn: whoever cancels this, a run that has begun is known to the middleware, which closes it."""
    run = await start_run(task, deps.planner, clock=deps.clock.monotonic, observer=observer)
    deps.requests.attach(record, run)
    return run


def _asked(task: Task) -> dict[str, Any]:
    """The task's input under a name that the log knows as content."""
    if isinstance(task.input, ChatInput):
        return {"messages": list(task.input.messages)}
    return {"prompts": list(task.input.prompts)}


async def _whole_body(run: Run, shape: Shape, context: RequestContext) -> dict[str, Any]:
    answers = [Gathered() for _ in range(len(run.prompts) * run.task.n)]
    async for chunk in run.chunks():
        answers[chunk.sequence].add(chunk)
        context.keep_text(chunk.sequence, chunk.text)
    choices = [shape.choice(index, answer) for index, answer in enumerate(answers)]
    return shape.envelope(choices, chunk=False) | {"usage": usage_object(run), "edgewise": run.receipt().to_dict()}


async def stream_events(
    run: Run, shape: Shape, form: AnswerForm, context: RequestContext, *, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    try:
        async for event in _answer_events(run, shape, form, context, keepalive_s):
            yield event
        yield DONE
    except EdgewiseError as error:
        context.error = error.code
        yield sse(error_body(error))
    except Exception as error:  # outermost frame of a stream; the client must hear of it
        log.exception("stream_broke", request_id=context.id)
        context.error = "internal_error"
        yield sse(error_body(internal_error(error)))


async def _answer_events(
    run: Run, shape: Shape, form: AnswerForm, context: RequestContext, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    usage: dict[str, Any] = {"usage": None} if form.include_usage else {}
    for choice in shape.opening():
        yield sse(shape.envelope([choice], chunk=True) | usage)
    while not run.done:
        chunk = await run.receive(keepalive_s)
        if chunk is None:
            yield KEEP_ALIVE
            continue
        context.keep_text(chunk.sequence, chunk.text)
        for choice in shape.deltas(chunk):
            event = shape.envelope([choice], chunk=True) | usage
            if run.done and choice["finish_reason"] is not None and not form.include_usage:
                event["edgewise"] = run.receipt().to_dict()
            yield sse(event)
    if form.include_usage:
        yield sse(shape.envelope([], chunk=True) | {"usage": usage_object(run), "edgewise": run.receipt().to_dict()})


class _Observer:
    """Feeds a run's pace to the metrics and its tokens to readiness."""

    def __init__(self, deps: ApiDependencies, model: str) -> None:
        self._readiness = deps.readiness
        self._model = model
        self._ttft = deps.metrics.ttft.labels(model)
        self._itl = deps.metrics.itl.labels(model)

    def first_token(self, seconds: float, /) -> None:
        self._ttft.observe(seconds)
        self._readiness.note_token(self._model)

    def next_tokens(self, count: int, seconds: float, /) -> None:
        self._itl.observe(seconds / count)
        self._readiness.note_token(self._model)
