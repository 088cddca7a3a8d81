"""/v1/files and /v1/batches in process: form, limits, cancel, expiry, faults that pass, and who sees what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from edgewise.api.batches.endpoints import ENDPOINTS
from edgewise.api.batches.runner import BatchRunner
from edgewise.api.deps import Keeping
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EngineUnavailable
from edgewise.core.priority import Priority, PriorityName, priority_of
from tests.api.harness import Api, listening, make_api, until
from tests.api.test_auth import Keys, Record
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import says

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"model": "tiny", "prompt": "hi"},
    RESPONSES: {"model": "tiny", "input": "hi"},
}


def lines(endpoint: str, count: int = 3, **changes: Any) -> bytes:
    one = {"method": "POST", "url": endpoint, "body": BODIES[endpoint] | changes}
    return "\n".join(json.dumps({"custom_id": f"c{number}", **one}) for number in range(count)).encode()


@asynccontextmanager
async def batching(folder: Path, engine: FakeEngine | None = None, **deps: Any) -> AsyncIterator[Api]:
    api = make_api(engine or FakeEngine(script=says("Hello")), files_folder=folder / "files", **deps)
    runner = BatchRunner(api.deps, ENDPOINTS, concurrency=2)
    runner.start()
    try:
        yield api
    finally:
        await runner.stop()
        api.deps.state.close()


async def upload(api: Api, data: bytes, **fields: str) -> httpx.Response:
    files = {"file": ("in.jsonl", data)}
    return await api.request("POST", "/v1/files", files=files, data={"purpose": "batch"} | fields)


async def begin(api: Api, endpoint: str, data: bytes, **fields: Any) -> str:
    file = (await upload(api, data)).json()["id"]
    body = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", **fields}
    return str((await api.answer("/v1/batches", body))["id"])


async def show(api: Api, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/v1/batches/{id}")).json()
    return found


async def ended(api: Api, id: str) -> dict[str, Any]:
    for _ in range(2000):
        batch = await show(api, id)
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(0.005)
    raise AssertionError(batch)


async def results(api: Api, file_id: str) -> list[dict[str, Any]]:
    text = (await api.get(f"/v1/files/{file_id}/content")).text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("endpoint", sorted(BODIES))
async def test_every_endpoint_answers_as_its_route_does(tmp_path: Path, endpoint: str) -> None:
    async with batching(tmp_path) as api:
        batch = await ended(api, await begin(api, endpoint, lines(endpoint, seed=5), metadata={"a": "b"}))
        assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert batch["error_file_id"] is None
        done = await results(api, batch["output_file_id"])
        assert [one["custom_id"] for one in done] == ["c0", "c1", "c2"]
        direct = await api.answer(endpoint, BODIES[endpoint] | {"seed": 5})
        for one in done:
            assert (one["response"]["status_code"], one["error"]) == (200, None)
            assert one["response"]["body"].keys() == direct.keys()
            assert one["response"]["body"]["edgewise"]["request_id"] == one["response"]["request_id"]
            assert one["response"]["body"]["edgewise"]["priority"] == "background"
        assert {request.priority for request in api.engine.requests[:3]} == {Priority.BACKGROUND}
        assert batch["usage"]["output_tokens"] == 18


@pytest.mark.parametrize(
    ("own", "asked", "in_force"),
    [
        ("realtime", None, "background"),
        ("interactive", "bulk", "bulk"),
        ("bulk", None, "bulk"),
    ],
)
async def test_lines_are_no_more_urgent_than_their_key(
    tmp_path: Path, own: PriorityName, asked: str | None, in_force: PriorityName
) -> None:
    keys = Keys({"a": Record("1", "app", frozenset({"inference", "admin"}), priority=own)})
    async with batching(tmp_path, keys=keys, base="http://192.0.2.7") as api:
        api.headers["authorization"] = "Bearer a"
        file = (await upload(api, lines(CHAT, 1))).json()["id"]
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        headers = {} if asked is None else {"x-edgewise-priority": asked}
        made = (await api.post("/v1/batches", body, headers=headers)).json()
        await ended(api, made["id"])
        (request,) = api.engine.requests
        assert (request.key, request.priority) == ("1", priority_of(in_force))
        (record,) = (await api.get("/edgewise/v1/requests")).json()["finished"]
        assert record["priority"] == in_force


async def test_lines_that_fail_are_in_the_error_file(tmp_path: Path) -> None:
    async with batching(tmp_path) as api:
        data = lines(CHAT, 1) + b"\n" + lines(CHAT, 1, stream=True).replace(b"c0", b"c1")
        data += b"\n" + lines(CHAT, 1, model="nope").replace(b"c0", b"c2")
        batch = await ended(api, await begin(api, CHAT, data))
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        failed = {one["custom_id"]: one["response"] for one in await results(api, batch["error_file_id"])}
        assert {id: response["status_code"] for id, response in failed.items()} == {"c1": 400, "c2": 404}
        assert failed["c1"]["body"]["error"]["param"] == "stream"


async def test_a_file_that_is_wrong_fails_with_its_lines(tmp_path: Path) -> None:
    async with batching(tmp_path) as api:
        batch = await ended(api, await begin(api, TEXT, lines(CHAT, 1) + b"\nnope"))
        assert batch["status"] == "failed"
        assert [(one["code"], one["line"]) for one in batch["errors"]["data"]] == [
            ("invalid_url", 1),
            ("invalid_json_line", 2),
        ]
        assert api.engine.requests == []


async def test_a_cancel_keeps_what_is_done(tmp_path: Path) -> None:
    engine = FakeEngine(script=says("Hello"))
    async with batching(tmp_path, engine) as api:
        id = await begin(api, TEXT, lines(TEXT, 20))
        await until(lambda: len(engine.requests) >= 6)
        engine.hold.clear()
        assert (await api.post(f"/v1/batches/{id}/cancel", {})).json()["status"] == "cancelling"
        batch = await ended(api, id)
        counts = batch["request_counts"]
        assert batch["status"] == "cancelled"
        assert counts["completed"] + counts["failed"] == 20
        assert len(await results(api, batch["output_file_id"])) == counts["completed"] > 0
        failed = await results(api, batch["error_file_id"])
        assert {one["error"]["code"] for one in failed} == {"batch_cancelled"}
        assert engine.open == {}
        assert (await api.post(f"/v1/batches/{id}/cancel", {})).status_code == 400


async def test_what_is_not_done_in_time_expires(tmp_path: Path) -> None:
    clock, engine = FakeClock(), FakeEngine(script=says("Hello"))
    engine.hold.clear()
    async with batching(tmp_path, engine, clock=clock) as api:
        id = await begin(api, TEXT, lines(TEXT))
        await until(lambda: len(engine.open) == 2)
        clock.advance(86_401)
        api.deps.batches.changed.set()
        batch = await ended(api, id)
        assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 3)
        assert {one["error"]["code"] for one in await results(api, batch["error_file_id"])} == {"batch_expired"}


async def test_a_fault_that_passes_is_waited_for(tmp_path: Path) -> None:
    clock, engine = FakeClock(), FakeEngine(script=says("Hello"), refuse=EngineUnavailable("The engine restarts."))
    async with batching(tmp_path, engine, clock=clock) as api:
        id = await begin(api, TEXT, lines(TEXT))
        await until(lambda: api.deps.requests.open == 0 and len(clock._sleepers) >= 2)
        engine.refuse = None
        clock.advance(30)
        ending = asyncio.create_task(ended(api, id))
        while not ending.done():
            await asyncio.sleep(0.005)
            clock.advance(30)
        assert (await ending)["request_counts"]["completed"] == 3


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_is_heard_while_there_is_news(tmp_path: Path, turns: int) -> None:
    api = make_api(files_folder=tmp_path / "files")
    runner = BatchRunner(api.deps, ENDPOINTS, concurrency=2)
    runner.start()
    await asyncio.sleep(0.1)
    api.deps.batches.changed.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(runner.stop(), 60)
    api.deps.state.close()


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    engine = FakeEngine(script=says("Hello"))
    api = make_api(engine, files_folder=tmp_path / "files")
    first = BatchRunner(api.deps, ENDPOINTS, concurrency=2)
    first.start()
    id = await begin(api, TEXT, lines(TEXT, 12))
    await until(lambda: len(engine.requests) >= 5)
    engine.hold.clear()
    await first.stop()
    done = (await show(api, id))["request_counts"]["completed"]
    assert 0 < done < 12
    assert engine.open == {}
    before = len(engine.requests)
    engine.hold.set()
    second = BatchRunner(api.deps, ENDPOINTS, concurrency=2)
    second.start()
    batch = await ended(api, id)
    await second.stop()
    assert len(engine.requests) - before == 12 - done  # what was done is not done again
    assert len({one["custom_id"] for one in await results(api, batch["output_file_id"])}) == 12
    api.deps.state.close()


async def test_a_drain_lets_lines_end_and_starts_no_more(tmp_path: Path) -> None:
    engine = FakeEngine(script=says("Hello"))
    engine.hold.clear()
    async with batching(tmp_path, engine) as api:
        id = await begin(api, TEXT, lines(TEXT, 9))
        await until(lambda: len(engine.open) == 2)
        api.deps.requests.begin_drain()
        engine.hold.set()
        assert await api.deps.requests.wait_idle(5)
        assert len(engine.requests) == 2
        assert (await upload(api, b"{}")).status_code == 503
        await until(lambda: engine.open == {})
        assert (await show(api, id))["request_counts"]["completed"] == 2


async def test_owners_do_not_see_each_other(tmp_path: Path) -> None:
    keys = Keys({name: Record(name, name, frozenset({"inference"})) for name in ("a", "b")})
    async with batching(tmp_path, keys=keys, base="http://192.0.2.7") as api:
        api.headers["authorization"] = "Bearer a"
        id = await begin(api, TEXT, lines(TEXT))
        batch = await ended(api, id)
        assert {request.key for request in api.engine.requests} == {"a"}
        api.headers["authorization"] = "Bearer b"
        for path in (
            f"/v1/batches/{id}",
            f"/v1/files/{batch['output_file_id']}",
            f"/v1/files/{batch['input_file_id']}",
        ):
            assert (await api.get(path)).status_code == 404
        assert (await api.get("/v1/batches")).json()["data"] == []
        assert (await api.get("/v1/files")).json()["data"] == []
        body = {"input_file_id": batch["input_file_id"], "endpoint": TEXT, "completion_window": "24h"}
        assert (await api.post("/v1/batches", body)).status_code == 404


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"purpose": "fine-tune"}, 400, "purpose"),
        ({"colour": "red"}, 400, "colour"),
        ({"expires_after[seconds]": "9000"}, 400, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}, 400, "expires_after[seconds]"),
    ],
)
async def test_uploads_with_mistakes(tmp_path: Path, fields: dict[str, str], status: int, param: str) -> None:
    async with batching(tmp_path) as api:
        response = await upload(api, b"{}", **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert (await api.get("/v1/files")).json()["data"] == []


async def test_uploads_of_another_form_or_size(tmp_path: Path) -> None:
    async with batching(tmp_path, keep=Keeping(file_bytes=1000)) as api:
        assert (await upload(api, b"x" * 1001)).status_code == 413
        assert (await upload(api, b"x" * 200_000)).status_code == 413
        assert (await upload(api, b"x" * 1000)).status_code == 200
        assert (await api.post("/v1/files", {})).status_code == 415
        form = {"content-type": "multipart/form-data"}
        assert (await api.request("POST", "/v1/files", content=b"x", headers=form)).status_code == 400
        form = {"content-type": "multipart/form-data; boundary=b"}
        assert (await api.request("POST", "/v1/files", content=b"junk", headers=form)).status_code == 400
        assert (await api.request("POST", "/v1/files", data={"purpose": "batch"}, headers={})).status_code == 415


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"colour": 1}, "colour"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
async def test_batches_with_mistakes(tmp_path: Path, changes: dict[str, Any], param: str) -> None:
    async with batching(tmp_path) as api:
        file = (await upload(api, lines(TEXT))).json()["id"]
        body = {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h", **changes}
        response = await api.post("/v1/batches", body)
        assert response.json()["error"]["param"] == param
        assert (await api.get("/v1/batches")).json()["data"] == []


async def test_the_official_client(tmp_path: Path) -> None:
    async with (
        batching(tmp_path) as api,
        listening(api) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        expiry: Any = {"anchor": "created_at", "seconds": 7200}
        file = await client.files.create(file=("in.jsonl", lines(TEXT)), purpose="batch", expires_after=expiry)
        assert file.expires_at == file.created_at + 7200
        batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        await ended(api, batch.id)
        batch = await client.batches.retrieve(batch.id)
        assert batch.output_file_id is not None
        assert len((await client.files.content(batch.output_file_id)).text.splitlines()) == 3
        assert [one.id async for one in client.batches.list()] == [batch.id]
        assert len([one async for one in client.files.list(purpose="batch")]) == 1
        await client.files.delete(file.id)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
