"""A client of /v1/realtime: one session, its events."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from edgewise.cli.chat_client import AnswerBroken, NoService, error_of, is_local, trusting

Event = dict[str, Any]


class VoiceClient:
    """An open session; `created` is its first event."""

    def __init__(self, socket: ClientConnection, created: Event) -> None:
        self._socket = socket
        self.created = created

    async def send(self, kind: str, **fields: Any) -> None:
        """Raises `AnswerBroken` if the service has left."""
        try:
            await self._socket.send(json.dumps({"type": kind, **fields}))
        except ConnectionClosed as error:
            raise _left(error) from error

    async def append(self, samples: bytes) -> None:
        """Send sound."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(samples).decode("ascii"))

    async def events(self) -> AsyncIterator[Event]:
        """What comes. Raises `AnswerBroken` when the service leaves."""
        while True:
            try:
                received = await self._socket.recv()
            except ConnectionClosed as error:
                raise _left(error) from error
            yield json.loads(received)


@contextlib.asynccontextmanager
async def open_session(
    url: str, *, key: str | None, trust: Path | None, parameters: Mapping[str, str | None]
) -> AsyncIterator[VoiceClient]:
    """Args:
        url: Of the service, as for `ChatClient`.
        parameters: Of the session's URL; None is left out.

    Raises:
        NoService, ServiceRefusedError, EngineUnavailable, NotFound: There is no session.
    """
    base = url.rstrip("/").removesuffix("/v1")
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    target = f"ws{base.removeprefix('http')}/v1/realtime" + (f"?{query}" if query else "")
    options: dict[str, Any] = {"proxy": None} if is_local(base) else {}
    if trust is not None:
        options["ssl"] = trusting(trust)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        socket = await connect(target, additional_headers=headers, max_size=2**24, open_timeout=60, **options)
    except InvalidStatus as error:
        raise _refused(error) from error
    except (OSError, InvalidHandshake, InvalidURI, asyncio.TimeoutError) as error:
        raise NoService(
            f"no Edgewise service answers at {base} ({error}); start it with `edgewise serve` or "
            "`systemctl start edgewise-device`"
        ) from error
    async with socket:
        yield VoiceClient(socket, json.loads(await socket.recv()))


def _refused(error: InvalidStatus) -> Exception:
    response = error.response
    try:
        detail = json.loads(response.body or b"")["error"]
    except (ValueError, KeyError, TypeError):
        detail = {"message": f"HTTP {response.status_code}"}
    return error_of(detail, response.status_code)


def _left(error: ConnectionClosed) -> AnswerBroken:
    why = f": {error.rcvd.reason}" if error.rcvd is not None and error.rcvd.reason else ""
    return AnswerBroken(f"the service has ended the session{why}")
