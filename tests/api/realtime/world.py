"""A service of voice sessions over doubles of the models, on a real loopback socket, and a client of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect

from edgewise.api.auth import AuthMiddleware
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import install_error_handlers
from edgewise.api.middleware import ContextMiddleware
from edgewise.api.parse import Caller
from edgewise.api.realtime.configuration import ModelNames
from edgewise.api.realtime.routes import realtime_router
from edgewise.core.errors import ModelNotFound
from edgewise.pipeline.model import Models
from edgewise.pipeline.voice.protocols import VoiceModels
from tests.api.harness import Api, listening
from tests.fakes.engine import FakeEngine
from tests.fakes.voice import DoubleModels, silence, speech

Event = dict[str, Any]


@dataclass
class Client:
    """One session; `events` keeps all that came."""

    socket: ClientConnection
    events: list[Event] = field(default_factory=list)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def say(self, seconds: float = 0.5, quiet: float = 0.7, rate: int = 24_000) -> None:
        sound = speech(seconds, rate) + silence(quiet, rate)
        await self.send("input_audio_buffer.append", audio=base64.b64encode(sound).decode())

    async def until(self, kind: str, seconds: float = 60.0) -> Event:
        """The next event of this type; all before it are kept."""
        ends = asyncio.get_running_loop().time() + seconds
        while True:
            left = ends - asyncio.get_running_loop().time()
            received: Event = json.loads(await asyncio.wait_for(self.socket.recv(), left))
            self.events.append(received)
            if received["type"] == kind:
                return received

    async def refusal(self, kind: str, **fields: Any) -> Event:
        """The error of an event that is refused."""
        await self.send(kind, event_id="mine", **fields)
        error: Event = (await self.until("error"))["error"]
        assert error["event_id"] == "mine"
        assert error["message"]
        return error

    def kinds(self) -> list[str]:
        """Types of what came, the same in a row once."""
        names = [one["type"] for one in self.events]
        return [name for number, name in enumerate(names) if not number or names[number - 1] != name]

    def of(self, kind: str) -> list[Event]:
        return [one for one in self.events if one["type"] == kind]

    def audio(self) -> bytes:
        return b"".join(base64.b64decode(one["delta"]) for one in self.of("response.output_audio.delta"))


@dataclass
class World:
    url: str
    deps: ApiDependencies
    models: DoubleModels
    asked: list[Caller] = field(default_factory=list)

    @asynccontextmanager
    async def client(self, query: str = "", **options: Any) -> AsyncIterator[Client]:
        async with connect(f"{self.url}/v1/realtime{query}", proxy=None, **options) as socket:
            client = Client(socket)
            await client.until("session.created")
            yield client

    def value(self, name: str, labels: dict[str, str] | None = None) -> float:
        return self.deps.metrics.registry.value(f"edgewise_{name}", labels) or 0.0


@asynccontextmanager
async def world(models: DoubleModels | None = None, **deps: Any) -> AsyncIterator[World]:
    """`deps`: further fields of `ApiDependencies`."""
    dependencies = ApiDependencies(models=Models(), **deps)
    double = models or DoubleModels()
    made = World("", dependencies, double)

    async def open_double(
        deps: ApiDependencies, asking: Caller, asked: Mapping[str, str]
    ) -> tuple[VoiceModels, ModelNames]:
        if asked.get("model", "tiny") != "tiny":
            raise ModelNotFound("There is only 'tiny'.", param="model")
        made.asked.append(asking)
        return double, ModelNames(chat="tiny", transcription="ears", speech="mouth", vad="detector")

    app = FastAPI()
    install_error_handlers(app)
    app.include_router(realtime_router(dependencies, open_double))
    app.add_middleware(AuthMiddleware, keys=dependencies.keys, access=dependencies.access)
    app.add_middleware(ContextMiddleware, deps=dependencies)
    async with listening(Api(FakeEngine(), dependencies, app)) as url:
        made.url = url.replace("http", "ws")
        yield made
