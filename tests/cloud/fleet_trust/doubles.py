"""Doubles of the fleet's services for tests of routes: they note each call and answer one fixed thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from edgewise.cloud.fleet.changes import Changes
from edgewise.cloud.fleet.people.service import PeopleService
from edgewise.cloud.fleet.services import Fleet
from edgewise.cloud.fleet.views import AuditView, CommandView, Page
from edgewise.core.errors import NotFound
from edgewise.wire.fleet import Ack
from tests.api.harness import until

COMMAND = CommandView(
    id="01J00000000000000000000000",
    uid="d1",
    op="ping",
    args={},
    author="ada",
    state="queued",
    created_at=1.0,
    changed_at=1.0,
)


class Recorder:
    """Any service: each method notes its call and answers what `answers` holds for its name."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments, options))
            answer = self._answers.get(name, NotFound(f"There is no {name} here."))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class StreamingCommands(Recorder):
    """One command whose answer comes in pieces; ends with a fault if there is one."""

    def __init__(self, acks: list[Ack], fault: Exception | None = None) -> None:
        super().__init__(command=COMMAND, send=[COMMAND])
        self._acks = acks
        self._fault = fault

    async def stream(self, actor: Any, command_id: str) -> AsyncIterator[Ack]:
        for ack in self._acks:
            yield ack
        if self._fault is not None:
            raise self._fault


def make_fleet(people: PeopleService, **services: Any) -> Fleet:
    """Real people, doubles of all that is not given."""
    parts = {
        name: services.get(name) or Recorder()
        for name in ("registry", "telemetry", "shadows", "commands", "rollouts", "alerts", "enrolment")
    }
    audit = services.get("audit") or Recorder(entries=Page[AuditView](items=(), total=0), verify=None)
    changes = services.get("changes") or Changes()
    return Fleet(people=people, audit=cast(Any, audit), changes=changes, **cast(Any, parts))


@asynccontextmanager
async def served(app: FastAPI, **options: Any) -> AsyncIterator[str]:
    """The application behind a real socket on loopback; its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off", access_log=False, **options)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    try:
        await until(lambda: server.started or task.done(), seconds=60)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if options.get('ssl_certfile') else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
