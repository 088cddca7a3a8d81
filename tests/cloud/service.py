"""A cloud engine over a fake engine, asked in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from edgewise.api.app import create_app
from edgewise.api.deps import ApiDependencies
from edgewise.cloud.app import CloudPart
from edgewise.core.settings_links import IntakeSettings
from edgewise.core.settings_schema import Settings
from edgewise.engine.request import GenerateRequest
from edgewise.pipeline.model import Models
from edgewise.security.keys import KeyStore
from edgewise.wire.http import BLOBS, JOBS
from edgewise.wire.messages import Capability
from tests.api.harness import Api
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

ANSWER = tuple(range(100, 140))


def resumable(request: GenerateRequest) -> Sequence[int]:
    """What a real engine does: the rest of the answer, after what was delivered."""
    return ANSWER[len(request.output) :]


def body(key: str = "k", *, max_tokens: int = 40, **fields: Any) -> dict[str, Any]:
    """A job for the fake model."""
    work = {"kind": "generate", "model": "tiny", "prompt": [1, 2, 3], "sampling": {"max_tokens": max_tokens}}
    return {"key": key, "device": "d", "work": work | fields.pop("work", {}), **fields}


@dataclass
class Cloud(Api):
    """One cloud engine.

    Attributes:
        keys: Its key store.
        home: Its state directory.
        part: What the service is extended with.
    """

    keys: KeyStore | None = None
    home: Path = Path()
    part: CloudPart | None = None

    def as_tenant(self, name: str, scopes: Sequence[str] = ("inference",)) -> Cloud:
        """The same service, asked with a key of this name."""
        assert self.keys is not None
        _, token = self.keys.create(name, scopes)
        return Cloud(
            engine=self.engine,
            deps=self.deps,
            app=self.app,
            headers={"authorization": f"Bearer {token}"},
            keys=self.keys,
            home=self.home,
            part=self.part,
        )

    async def capabilities(self) -> Sequence[Capability]:
        """What its back end says of itself now."""
        assert self.part is not None
        return await self.part.executor.capabilities()

    async def submit(self, job: dict[str, Any] | None = None) -> str:
        """Its id."""
        response = await self.post(JOBS, job or body())
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    async def stream(self, id: str, query: str = "", **named: Any) -> list[tuple[str, dict[str, Any]]]:
        """Ids and data of all events from a place on, to the final record."""
        response = await self.get(f"{JOBS}/{id}/stream{query}", **named)
        assert response.status_code == 200, response.text
        events = []
        for block in response.text.strip().split("\n\n"):
            if not block.startswith(":"):
                name, data = block.split("\n")
                events.append((name.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
        return events

    async def tokens(self, id: str, query: str = "") -> tuple[list[int], dict[str, Any]]:
        """The tokens of a stream and its final record."""
        events = [event for _, event in await self.stream(id, query)]
        return [token for event in events[:-1] for token in event.get("tokens", ())], events[-1]

    async def show(self, id: str) -> dict[str, Any]:
        response = await self.get(f"{JOBS}/{id}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def when(self, id: str, state: str) -> dict[str, Any]:
        """The job once it is in a state."""
        for _ in range(2000):
            job = await self.show(id)
            if job["state"] == state:
                return job
            await asyncio.sleep(0.005)
        raise AssertionError(f"the job is {job['state']}, not {state}")

    async def put(self, sha256: str, content: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request("PUT", f"{BLOBS}/{sha256}", content=content, headers=named)


@asynccontextmanager
async def cloud_engine(
    home: Path, engine: FakeEngine | None = None, *, models: Models | None = None, **intake: Any
) -> AsyncIterator[Cloud]:
    """Its part of the service runs until the block is left; `intake` are settings."""
    fake = engine or FakeEngine(script=resumable)
    settings = Settings(home=home, intake=IntakeSettings(**intake))
    with KeyStore(settings.keys_file) as keys:
        deps = ApiDependencies(models=models or Models([fake_model(fake)]), keys=keys)
        part = CloudPart(settings, deps)
        app = create_app(deps, part.routers)
        part.start()
        try:
            yield Cloud(engine=fake, deps=deps, app=app, keys=keys, home=home, part=part)
        finally:
            await part.stop()
