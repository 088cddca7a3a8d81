"""GET /v1/realtime, upgraded to a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import APIRouter, WebSocket
from starlette.datastructures import Headers

from edgewise.api.context import RequestContext, context_of
from edgewise.api.deps import ApiDependencies, VoiceLimits
from edgewise.api.errors import internal_error, refuse
from edgewise.api.generate import caller
from edgewise.api.parse import Caller
from edgewise.api.priority import asked_priority
from edgewise.api.privacy import asked_policy, asked_privacy
from edgewise.api.realtime.configuration import Configuration, ModelNames
from edgewise.api.realtime.connection import Connection
from edgewise.api.realtime.metrics import VoiceMetrics
from edgewise.api.realtime.models import open_models
from edgewise.api.requests import RETRY_AFTER_FULL_S, shutting_down
from edgewise.core.errors import EdgewiseError, QueueFull, UnknownField
from edgewise.core.log import get_logger
from edgewise.core.priority import Priority, priority_of
from edgewise.models.media.rates import RATE
from edgewise.pipeline.transcribe.task import SAMPLE_BYTES
from edgewise.pipeline.voice.protocols import VoiceModels
from edgewise.pipeline.voice.sound import WIDTH

log = get_logger(__name__)

REALTIME: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
PARAMETERS: Final = ("model", "transcription_model", "speech_model")
"""What the URL may say: the models of the session. By default the first that is installed for each role."""

Open = Callable[[ApiDependencies, Caller, Mapping[str, str]], Awaitable[tuple[VoiceModels, ModelNames]]]


def realtime_router(deps: ApiDependencies, open_models: Open = open_models) -> APIRouter:
    """`open_models` is replaced in tests."""
    router = APIRouter(tags=["OpenAI"])
    metrics = deps.metrics.voice
    sessions: set[str] = set()

    @router.websocket(REALTIME)
    async def realtime(socket: WebSocket) -> None:
        context = context_of(socket.scope)
        try:
            _check_room(deps, len(sessions))
            sessions.add(context.id)
            metrics.sessions.set(len(sessions))
            hold = deps.media.held.hold()
            try:
                hold.add(_sound_bytes(deps.voice), "voice.max_turn_s")
                connection = await _open(socket, deps, context, open_models, metrics)
                error = await connection.serve()
                context.error = None if error is None else error.code
            finally:
                hold.close()
                sessions.discard(context.id)
                metrics.sessions.set(len(sessions))
        except EdgewiseError as error:  # before it was accepted: the answer is an HTTP response
            context.error = error.code
            await refuse(error, socket.scope, socket.receive, socket.send)

    return router


def _sound_bytes(limits: VoiceLimits) -> int:
    """What a session may hold of what it hears: a turn as it is found, and once more while it is transcribed, as float32."""
    return int(limits.max_turn_s * RATE) * (WIDTH + SAMPLE_BYTES)


def _check_room(deps: ApiDependencies, open_now: int) -> None:
    if deps.draining:
        raise shutting_down()
    most = deps.voice.max_sessions
    if open_now >= most:
        raise QueueFull(
            f"{most} voice sessions are open, which is this service's limit (`voice.max_sessions`): try again when one has "
            "ended.",
            retry_after_s=RETRY_AFTER_FULL_S,
        )


async def _open(
    socket: WebSocket, deps: ApiDependencies, context: RequestContext, open_models: Open, metrics: VoiceMetrics
) -> Connection:
    """Everything that can be refused is, before the socket is accepted. Raises `EdgewiseError`."""
    asked: dict[str, str] = {}
    for name, value in socket.query_params.items():
        if name not in PARAMETERS:
            raise UnknownField(
                f"The parameter '{name[:80]}' of the URL is not known: there are {', '.join(PARAMETERS)}.",
                param=name[:80],
            )
        asked[name] = value
    headers = Headers(scope=socket.scope)
    context.priority = asked_priority(headers, context.key) or _own_priority(context)
    context.privacy, context.policy = asked_privacy(headers), asked_policy(headers)
    try:
        models, names = await open_models(deps, caller(context, deps), asked)
    except EdgewiseError:
        raise
    except Exception as error:  # outermost frame of a handshake; the client must get an answer
        log.exception("voice_session_not_opened", request_id=context.id)
        raise internal_error(error) from error
    context.facts["model"] = names.chat
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    return Connection(socket, deps, models, Configuration(names=names), metrics)


def _own_priority(context: RequestContext) -> Priority:
    """Speech waits for nothing, unless its key is of a lower class."""
    return Priority.REALTIME if context.key is None else priority_of(context.key.priority)
