"""One client's connection: its events to calls of the session, and what the session tells to events."""

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgewise.api.body import parse_json
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import BadJson, internal_error
from edgewise.api.realtime import schemas
from edgewise.api.realtime.configuration import Configuration
from edgewise.api.realtime.events import Event, error_event, event, events_of, item_added
from edgewise.api.realtime.outbox import Outbox
from edgewise.api.requests import shutting_down
from edgewise.api.schemas import validate
from edgewise.core.ending import Endings
from edgewise.core.errors import Cancelled, EdgewiseError, InvalidRequest, PayloadTooLarge, UnsupportedField
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.pipeline.voice.conversation import Item
from edgewise.pipeline.voice.protocols import Told, VoiceModels, VoiceObserver
from edgewise.pipeline.voice.session import VoiceSession

log = get_logger(__name__)

GOING_AWAY: Final = 1001
POLICY: Final = 1008
BROKEN: Final = 1011
_FLUSH_S: Final = 2.0
"""For the last events to leave, and as long for the close."""

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[["Connection", Mapping[str, Any]], Awaitable[None]]


class SessionExpired(EdgewiseError):
    """A session has been open for as long as one may be."""

    code = "session_expired"
    http_status = 408


class Connection:
    """An accepted WebSocket and its session."""

    def __init__(
        self,
        socket: WebSocket,
        deps: ApiDependencies,
        models: VoiceModels,
        configuration: Configuration,
        observer: VoiceObserver,
    ) -> None:
        self.id = f"sess_{uuid.uuid4().hex[:24]}"
        self._socket = socket
        self._deps = deps
        self._models = models
        self._limits = deps.voice
        self._configuration = configuration
        self._expires_at = int(deps.clock.time() + self._limits.max_session_s)
        self._outbox = Outbox(socket.send, send_timeout_s=deps.limits.send_timeout_s)
        self.session = VoiceSession(
            models,
            self._tell,
            options=configuration.options,
            observer=observer,
            max_seconds=self._limits.max_turn_s,
            clock=deps.clock.monotonic,
        )

    async def serve(self) -> EdgewiseError | None:
        """Until the client leaves, the session has lasted as long as it may, or the service ends; why, if not the client."""
        work = [
            asyncio.create_task(one, name=f"{self.id}/{name}")
            for name, one in (
                ("read", self._read()),
                ("listen", self.session.run()),
                ("send", self._outbox.run()),
                ("end", self._end()),
            )
        ]
        preparing = asyncio.create_task(self._models.prepare(), name=f"{self.id}/prepare")
        error: EdgewiseError | None = None
        async with Endings() as endings:  # also where this is cancelled again while it ends
            endings.add("the connection", lambda: self._close(error))
            endings.add("the conversation", self.session.aclose)
            endings.add("the tasks of the connection", lambda: end_task(*work, preparing))
            await self._outbox.put(self._session_event("session.created"))
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            error = _reason(work)
        return error

    async def _close(self, error: EdgewiseError | None) -> None:
        """Send what waits and say why, if somebody is there to read it."""
        if error is None:
            self._outbox.close()
        elif isinstance(error, Cancelled):
            self._outbox.close()
            await _attempt(self._socket.close(POLICY, error.message))
        else:
            self._outbox.close(error_event(error))
            await _attempt(self._outbox.flush())
            away = isinstance(error, SessionExpired) or error.retryable
            await _attempt(self._socket.close(GOING_AWAY if away else BROKEN, error.message[:100]))

    async def _end(self) -> None:
        """Raises why the session must end: it has lasted as long as it may, or the service ends and no answer is under way."""
        drain = asyncio.create_task(self._deps.requests.wait_drain())
        try:
            done, _ = await asyncio.wait({drain}, timeout=self._limits.max_session_s)
        finally:
            await end_task(drain)
        if done:
            await self.session.wait_answered()
            raise shutting_down()
        raise SessionExpired(
            f"The session has lasted {self._limits.max_session_s:g} s, the limit of one session (`voice.max_session_s`): "
            "open another one."
        )

    async def _tell(self, told: Told) -> None:
        await self._outbox.put(*events_of(told))

    # --- from the client ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            received: Any = None
            try:
                received = self._parse(message)
                await self._handle(received)
            except EdgewiseError as error:
                await self._outbox.put(error_event(error, _event_id(received)))

    def _parse(self, message: Mapping[str, Any]) -> dict[str, Any]:
        text = message.get("text")
        if text is None:
            raise BadJson(
                "A binary message came: events are JSON texts, and sound travels in them as base64 ('input_audio_buffer.append')."
            )
        most = self._limits.max_message_bytes
        if len(text) > most:
            raise PayloadTooLarge(
                f"A message of {len(text)} bytes came: at most {most} are taken (`voice.max_message_bytes`). Send sound in "
                "smaller pieces."
            )
        return parse_json(text.encode())

    async def _handle(self, received: Mapping[str, Any]) -> None:
        kind = received.get("type")
        handler = HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            raise UnsupportedField(
                f"Events of the type '{str(kind)[:80]}' are not taken here. Those that are: {', '.join(HANDLERS)}.",
                param="type",
            )
        await handler(self, received)

    async def _update(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.SessionUpdate, received)
        schemas.refuse(body.session, "session")
        configuration = self._configuration.updated(body.session)
        await self.session.configure(configuration.options)
        self._configuration = configuration
        await self._outbox.put(self._session_event("session.updated"))

    def _session_event(self, kind: str) -> Event:
        return event(kind, session=self._configuration.show(self.id, self._expires_at))

    async def _append(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.Append, received)
        try:
            samples = base64.b64decode(body.audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"'audio' is no base64: {error}.", param="audio") from error
        if len(samples) % 2:
            raise InvalidRequest(
                f"'audio' has {len(samples)} bytes: samples have two, and a message has whole ones.", param="audio"
            )
        await self.session.append(samples)

    async def _commit(self, received: Mapping[str, Any]) -> None:
        validate(schemas.Plain, received)
        await self.session.commit()

    async def _clear(self, received: Mapping[str, Any]) -> None:
        validate(schemas.Plain, received)
        await self.session.clear()
        await self._outbox.put(event("input_audio_buffer.cleared"))

    async def _create_item(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.ItemCreate, received)
        conversation = self.session.conversation
        if body.previous_item_id not in (None, conversation.last_id):
            raise UnsupportedField(
                "'previous_item_id' is not supported here but for the last item: new ones are added at the end.",
                param="previous_item_id",
            )
        wanted = "output_text" if body.item.role == "assistant" else "input_text"
        for number, part in enumerate(body.item.content):
            if part.type != wanted:
                param = f"item.content[{number}].type"
                raise InvalidRequest(f"'{param}' must be '{wanted}' where the role is '{body.item.role}'.", param=param)
        item = Item(
            id=body.item.id or f"item_{uuid.uuid4().hex[:24]}",
            role=body.item.role,
            text="\n".join(part.text for part in body.item.content),
        )
        await self._outbox.put(*item_added(item, await self.session.add(item)))

    async def _delete_item(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.ItemDelete, received)
        self.session.conversation.delete(body.item_id)
        await self._outbox.put(event("conversation.item.deleted", item_id=body.item_id))

    async def _truncate_item(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.ItemTruncate, received)
        if body.content_index != 0:
            raise InvalidRequest("'content_index' must be 0: items have one part.", param="content_index")
        await self.session.truncate(body.item_id, body.audio_end_ms)

    async def _create_response(self, received: Mapping[str, Any]) -> None:
        body = validate(schemas.ResponseCreate, received)
        if body.response is not None:
            schemas.refuse(body.response, "response")
        await self.session.respond(self._configuration.for_answer(body.response).options)

    async def _cancel_response(self, received: Mapping[str, Any]) -> None:
        await self.session.cancel(validate(schemas.ResponseCancel, received).response_id)


HANDLERS: Final[Mapping[str, Handler]] = {
    "session.update": Connection._update,
    "input_audio_buffer.append": Connection._append,
    "input_audio_buffer.commit": Connection._commit,
    "input_audio_buffer.clear": Connection._clear,
    "conversation.item.create": Connection._create_item,
    "conversation.item.delete": Connection._delete_item,
    "conversation.item.truncate": Connection._truncate_item,
    "response.create": Connection._create_response,
    "response.cancel": Connection._cancel_response,
}
"""What a client may send; everything else is refused by name."""


def _event_id(received: Any) -> str | None:
    given = received.get("event_id") if isinstance(received, dict) else None
    return given[:512] if isinstance(given, str) else None


async def _attempt(work: Coroutine[Any, Any, None]) -> None:
    """For a client who may have left, or read nothing: whatever comes of it, it takes no longer than `_FLUSH_S`."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=_FLUSH_S)
    await end_task(task)


def _reason(work: list[asyncio.Task[None]]) -> EdgewiseError | None:
    """Why the first task ended; None where the client left."""
    for task in work:
        if not task.done():
            continue
        error = task.exception()
        if isinstance(error, WebSocketDisconnect):
            return None
        if isinstance(error, EdgewiseError):
            return error
        if isinstance(error, Exception):
            log.exception("voice_session_broke", error, task=task.get_name())
            return internal_error(error)
    return None
