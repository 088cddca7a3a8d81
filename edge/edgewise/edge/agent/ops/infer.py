"""`infer`: an answer of a model, by the same way as over HTTP, streamed in pieces and whole at the end.

The arguments are a body of `/v1/chat/completions` (with `messages`) or `/v1/completions` (with `prompt`); without `model` the
first one answers. The result is what the route would have answered, receipt included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.api.context import key_salt
from edgewise.api.deps import ApiDependencies
from edgewise.api.generate import begin
from edgewise.api.parse import Caller
from edgewise.api.routes_v1 import prepare_chat, prepare_completion
from edgewise.api.schemas import ChatBody, CompletionBody, validate
from edgewise.api.writers import Writer
from edgewise.core.errors import EdgewiseError, InvalidRequest, ModelNotFound
from edgewise.core.priority import Priority, PriorityName
from edgewise.core.privacy import PrivacyName, early_label
from edgewise.edge.agent.commands.operation import Call, Operation
from edgewise.pipeline.run import Run

ROUTE = "fleet/infer"
_ANY_MODEL = "first"  # stands for the model that is named when it is asked
_NOT_HERE = {"stream": "it is always streamed", "stream_options": "it is always streamed", "n": "one answer is given"}


@dataclass(frozen=True, slots=True)
class FleetKey:
    """Whoever asks through the fleet, for fairness, limits and the list of requests."""

    id: str = "fleet"
    name: str = "fleet"
    scopes: frozenset[str] = frozenset({"inference"})
    priority: PriorityName = "interactive"
    privacy: PrivacyName | None = None
    device: str | None = None


def infer(deps: ApiDependencies) -> Operation:
    """Not repeatable: whoever reads the stream has begun of it already."""

    async def run(call: Call) -> dict[str, Any]:
        return await _Inference(deps, call).run()

    return Operation(name="infer", lane="infer", check=check, run=run)


def check(args: Mapping[str, Any]) -> None:
    """Raises an `InvalidRequest` that names the field."""
    for name, why in _NOT_HERE.items():
        if args.get(name) not in (None, 1):
            raise InvalidRequest(f"'{name}' is not taken here: {why}.", param=name)
    if ("messages" in args) == ("prompt" in args):
        raise InvalidRequest("Give either 'messages' or 'prompt'.", param="messages")
    schema: type[ChatBody] | type[CompletionBody] = ChatBody if "messages" in args else CompletionBody
    validate(schema, {"model": _ANY_MODEL, **args})


class _Inference:
    def __init__(self, deps: ApiDependencies, call: Call) -> None:
        self._deps = deps
        self._call = call

    async def run(self) -> dict[str, Any]:
        deps, clock = self._deps, self._deps.clock
        key, status = FleetKey(), 200
        record = deps.requests.enter(id=self._call.id, route=ROUTE, key=key.name, priority=Priority.INTERACTIVE)
        record.stream = True
        try:
            body = {"model": await self._model(), **self._call.args}
            caller = self._caller(key)
            early_label.set(caller.early_label)
            prepare = prepare_chat if "messages" in body else prepare_completion
            prepared = await prepare(deps, body, caller)
            run = await begin(deps, record, prepared)
            answer = await self._stream(run, prepared.write(run, int(clock.time())))
            deps.metrics.answered(run.model_name, run.usage(), clock.monotonic() - record.started_monotonic)
            return answer
        except EdgewiseError as error:
            status, record.error = error.http_status, error.code
            raise
        finally:
            await deps.requests.end(record, status=status)

    async def _stream(self, run: Run, writer: Writer) -> dict[str, Any]:
        async for chunk in run.chunks():
            writer.gather(chunk)
            if chunk.text:
                await self._call.piece(chunk.text)
        await writer.settle()
        return writer.body()

    def _caller(self, key: FleetKey) -> Caller:
        limits = self._deps.limits
        return Caller(
            request_id=self._call.id,
            salt=key_salt(key.id),
            key=key,
            model_priority=limits.model_priority,
            labels=self._deps.labels,
            timeout_s=limits.request_timeout_s,
            max_sequences=1,
        )

    async def _model(self) -> str:
        cards = [card.name for card in await self._deps.models.cards() if card.role == "llm"]
        if not cards:
            raise ModelNotFound("This device has no model that writes text: pull one first.", param="model")
        return cards[0]
