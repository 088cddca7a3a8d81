"""The ledger of media over whole requests: booked while they are in work, given back however they end, refused with a remedy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from edgewise.api.deps import Limits
from edgewise.core.errors import EdgewiseError, InvalidRequest, QueueFull
from edgewise.models.media.needs import LEAST
from tests.api.harness import CHAT, Api, error_of, make_api, until
from tests.api.test_limits import Caller
from tests.fakes.engine import FakeEngine
from tests.pipeline.test_media import model_of, url, with_config

MEMORY = "/edgewise/v1/memory"


def looking(**options: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": "see:"}, {"type": "image_url", "image_url": {"url": url()}}]
    return {"model": "tiny", "messages": [{"role": "user", "content": parts}], "max_tokens": 4, **options}


class Desk:
    """A service whose model sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Api] = []

    def api(self, **options: Any) -> Api:
        model = with_config(model_of(self.folder, "qwen"), self.folder, {})
        engine = cast("FakeEngine", model.engine)
        self.made.append(make_api(engine, model=replace(model, name="tiny"), **options))
        return self.made[-1]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for api in made.made:
        api.deps.media.process.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_model_sees_is_booked_until_the_answer_is_over(desk: Desk, stream: bool) -> None:
    api = desk.api()
    api.engine.hold.clear()
    held = api.deps.media.held
    asking = asyncio.create_task(api.post(CHAT, looking(stream=stream)))
    await until(lambda: len(api.engine.requests) == 1)
    size = sum(len(medium.content) for medium in api.engine.requests[0].media)
    shown = (await api.get(MEMORY)).json()["media"]
    assert held.used == shown["booked_bytes"] == size > 0
    assert shown["peak_bytes"] > size
    assert f"edgewise_media_booked_bytes {float(size)}" in (await api.get("/metrics")).text
    api.engine.hold.set()
    assert (await asking).status_code == 200
    assert held.used == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_at_any_turn_leaves_nothing_booked(desk: Desk, stream: bool) -> None:
    api = desk.api()
    process, held = api.deps.media.process, api.deps.media.held
    decode = process.decode
    for job, books in (("needs-picture", False), ("picture", True)):
        came, go = threading.Event(), threading.Event()

        def halting(
            name: str, *given: Any, job: str = job, came: Any = came, go: Any = go, **options: Any
        ) -> tuple[dict[str, Any], bytes]:
            if name == job:
                came.set()
                assert go.wait(60)
                raise InvalidRequest("nobody hears of it")
            return decode(name, *given, **options)

        process.decode = halting  # type: ignore[assignment, method-assign]
        caller = Caller(api, CHAT, looking(stream=stream))
        await until(came.is_set)
        assert held.used > LEAST if books else held.used == 0, job
        caller.leave()
        await asyncio.wait_for(caller.task, 60)
        assert held.used == 0, job
        go.set()
    process.decode = decode  # type: ignore[method-assign]
    api.engine.hold.clear()
    caller = Caller(api, CHAT, looking(stream=stream))
    await until(lambda: api.engine.pages_used > 0)
    assert held.used == sum(len(medium.content) for medium in api.engine.requests[-1].media) > 0
    caller.leave()
    await asyncio.wait_for(caller.task, 60)
    assert held.used == 0


@pytest.mark.parametrize(
    ("refuse", "body", "status"),
    [(QueueFull("The queue is full.", retry_after_s=1.0), looking(), 429), (None, looking(max_tokens=10**6), 400)],
)
async def test_what_an_engine_or_a_check_refuses_leaves_nothing_booked(
    desk: Desk, refuse: EdgewiseError | None, body: dict[str, Any], status: int
) -> None:
    api = desk.api()
    api.engine.refuse = refuse
    answer = await api.post(CHAT, body)
    assert answer.status_code == status
    assert api.deps.media.held.peak > 0
    assert api.deps.media.held.used == 0


async def test_more_than_is_ever_given_is_413_and_more_than_is_free_is_503(desk: Desk) -> None:
    api = desk.api(limits=Limits(media_bytes=24 << 20))
    held = api.deps.media.held
    other = held.hold()
    other.add(2 << 20, "file")
    busy = await api.post(CHAT, looking())
    assert (busy.status_code, error_of(busy)["code"]) == (503, "insufficient_memory")
    assert int(busy.headers["retry-after"]) >= 1
    other.close()
    assert (await api.post(CHAT, looking())).status_code == 200
    held.limit = 1 << 20
    never = await api.post(CHAT, looking())
    assert (never.status_code, error_of(never)["code"]) == (413, "payload_too_large")
    assert error_of(never)["param"] == "messages[0].content[1].image_url.url"
    for word in ("1.0 MiB", "limits.media_bytes", "send fewer or shorter"):
        assert word in error_of(never)["message"]
    metrics = (await api.get("/metrics")).text
    assert 'edgewise_media_refused_total{full="service"} 1.0' in metrics
    assert 'edgewise_media_refused_total{full="request"} 1.0' in metrics
    assert held.used == 0
