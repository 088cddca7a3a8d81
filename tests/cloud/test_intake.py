from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cbor2
import pytest

from edgewise.cloud.jobs.records import Claim
from edgewise.cloud.jobs.table import JobTable
from edgewise.cloud.tenants import tenant_of_device
from edgewise.core.errors import EngineUnavailable, NotAuthenticated
from edgewise.core.settings_links import IntakeSettings
from edgewise.pipeline.model import Models
from edgewise.security.keys import KeyStore
from edgewise.wire.http import CLOUD, JOBS
from edgewise.wire.messages import Accepted, CloudInfo
from tests.api.harness import error_of, until
from tests.cloud.service import ANSWER, Cloud, body, cloud_engine, resumable
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import DIGEST, fake_model


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with cloud_engine(tmp_path) as made:
        yield made


# --- jobs and streams --------------------------------------------------------------------------------------------------------


async def test_a_job_and_its_stream(cloud: Cloud) -> None:
    response = await cloud.post(JOBS, body(max_tokens=4))
    accepted = Accepted.model_validate(response.json())
    assert (response.status_code, accepted.offset) == (202, 0)
    tokens, final = await cloud.tokens(accepted.id)
    assert tokens == [*ANSWER[:4]]
    assert (final["state"], final["finish"], final["count"]) == ("succeeded", "length", 4)
    assert final["usage"] | {"busy_s": 0} == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "steps": 0,
        "busy_s": 0,
        "price": 0.0,
    }
    assert final["numeric_class"] == "fake/float32/int8/none/cpu"
    assert final["facts"]["prefill_s"] == 0.002
    (request,) = cloud.engine.requests
    assert (request.key, request.salt) == ("(anonymous)", "(anonymous)")


async def test_a_job_that_is_claimed_while_the_service_drains_waits_for_the_next_process(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, claimed, go_on = JobTable.claim, asyncio.Event(), asyncio.Event()

    async def claim(table: JobTable, *arguments: Any) -> Claim | None:
        found = await whole(table, *arguments)
        if found is not None:
            claimed.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(JobTable, "claim", claim)
    accepted = Accepted.model_validate((await cloud.post(JOBS, body())).json())
    await claimed.wait()
    assert cloud.part is not None
    draining = asyncio.create_task(cloud.part._workers.drain())
    await asyncio.sleep(0)
    go_on.set()
    await draining
    assert (await cloud.show(accepted.id))["state"] == "queued"
    assert cloud.engine.requests == []
    assert cloud.part._workers.running == 0


async def test_cbor_is_read_as_json_is(cloud: Cloud) -> None:
    payload = cbor2.dumps(body(max_tokens=2))
    response = await cloud.post(JOBS, payload, headers={"content-type": "application/cbor"})
    assert response.status_code == 202
    assert (await cloud.tokens(response.json()["id"]))[0] == [*ANSWER[:2]]


async def test_bytes_in_a_field_of_a_later_version_do_no_harm(cloud: Cloud) -> None:
    payload = cbor2.dumps(body(max_tokens=2, tomorrow=b"\xff\x00"))
    response = await cloud.post(JOBS, payload, headers={"content-type": "application/cbor"})
    assert (await cloud.tokens(response.json()["id"]))[1]["state"] == "succeeded"


async def test_streams_resume_from_any_place(cloud: Cloud) -> None:
    id = await cloud.submit(body(max_tokens=10))
    whole = await cloud.stream(id)
    assert whole[-1][0] == "1.10"
    for place, _ in whole[:-1]:
        events = await cloud.stream(id, f"?from={place}")
        assert events == await cloud.stream(id, headers={"last-event-id": place})
        offset = int(place.partition(".")[2])
        assert [token for _, event in events[:-1] for token in event["tokens"]] == [*ANSWER[offset:10]]


async def test_a_repeat_is_the_same_job(cloud: Cloud) -> None:
    id = await cloud.submit()
    assert await cloud.submit() == id
    await cloud.tokens(id)
    repeat = (await cloud.post(JOBS, body())).json()
    assert (repeat["id"], repeat["state"], repeat["offset"]) == (id, "succeeded", 40)
    assert len(cloud.engine.requests) == 1


async def test_a_key_is_not_taken_for_other_work(cloud: Cloud) -> None:
    await cloud.submit()
    error = error_of(response := await cloud.post(JOBS, body(work={"prompt": [9]})))
    assert (response.status_code, error["code"], error["param"]) == (409, "idempotency_key_reused", "key")
    await cloud.submit(body(work={"output": [100]}))  # what the device has is no part of the work


async def test_output_that_the_device_has_is_not_made_again(cloud: Cloud) -> None:
    id = await cloud.submit(body(work={"output": [*ANSWER[:7]]}, max_tokens=33))
    events = await cloud.stream(id)
    assert events[0][1]["offset"] == 7
    assert (await cloud.tokens(id))[0] == [*ANSWER[7:40]]
    assert events[-1][1]["usage"]["completion_tokens"] == 33


async def test_places_that_are_not_there(cloud: Cloud) -> None:
    id = await cloud.submit(body(max_tokens=4))
    await cloud.tokens(id)
    for query, status in (("?from=1.5", 416), ("?from=2.0", 416), ("?from=x", 400)):
        response = await cloud.get(f"{JOBS}/{id}/stream{query}")
        assert (response.status_code, error_of(response)["param"]) == (status, "from")
    acknowledged = await cloud.post(f"{JOBS}/{id}/ack", {"after": "1.2"})
    assert acknowledged.status_code == 204
    response = await cloud.get(f"{JOBS}/{id}/stream?from=1.1")
    assert (response.status_code, error_of(response)["code"]) == (410, "gone")
    assert (await cloud.tokens(id, "?from=1.2"))[0] == [*ANSWER[2:4]]


async def test_an_acknowledged_result_leaves_state_and_usage(cloud: Cloud) -> None:
    id = await cloud.submit(body(max_tokens=4))
    await cloud.tokens(id)
    await cloud.post(f"{JOBS}/{id}/ack", {"key": "k", "op": "ack", "after": "1.4", "done": True})
    job = await cloud.show(id)
    assert (job["state"], job["kept"], job["final"]["usage"]["completion_tokens"]) == ("succeeded", False, 4)
    assert "sha256" not in job["final"]
    assert (await cloud.get(f"{JOBS}/{id}/stream")).status_code == 410
    assert await cloud.submit(body(max_tokens=4)) == id


async def test_cancel_stops_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable)
    async with cloud_engine(tmp_path, engine) as cloud:
        engine.delay_s = 0.01
        id = await cloud.submit()
        await until(lambda: engine.open)
        assert (await cloud.post(f"{JOBS}/{id}/cancel", {})).status_code == 204
        job = await cloud.when(id, "cancelled")
        assert (engine.open, engine.aborted) == ({}, 1)
        tokens, final = await cloud.tokens(id)
        assert (len(tokens), final["finish"]) == (job["offset"], "cancelled")
        assert (await cloud.post(f"{JOBS}/{id}/cancel", {})).status_code == 204


async def test_time_to_live_of_a_running_job(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable, delay_s=0.05)
    async with cloud_engine(tmp_path, engine) as cloud:
        id = await cloud.submit(body(ttl_ms=300))
        tokens, final = await cloud.tokens(id)
        assert (final["state"], final["error_code"]) == ("expired", "deadline_exceeded")
        assert tokens == [*ANSWER[: len(tokens)]]
        assert engine.open == {}


async def test_an_engine_that_breaks_is_followed_by_another_attempt(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable, fault=Fault(request=0, at=5, code="engine_unavailable"))
    async with cloud_engine(tmp_path, engine) as cloud:
        id = await cloud.submit()
        events = await cloud.stream(id)
        tokens, final = await cloud.tokens(id)
        assert (tokens, final["attempt"]) == ([*ANSWER], 2)
        assert engine.requests[1].output == ANSWER[:5]
        assert next(place for place, _ in events if place.startswith("2.")) == "2.6"
        assert final["usage"]["completion_tokens"] == 40


async def test_a_fault_of_the_request_ends_the_job(tmp_path: Path) -> None:
    engine = FakeEngine(fault=Fault(request=0, at=3, code="constraint_failed", message="A dead end."))
    async with cloud_engine(tmp_path, engine) as cloud:
        _, final = await cloud.tokens(await cloud.submit())
        assert (final["state"], final["error_code"]) == ("rejected", "constraint_failed")
        assert final["error_message"] == "A dead end."
        assert final["usage"]["completion_tokens"] == 0


async def test_an_engine_that_never_comes_fails_the_job(tmp_path: Path) -> None:
    engine = FakeEngine(refuse=EngineUnavailable("It is broken."))
    async with cloud_engine(tmp_path, engine, max_attempts=2) as cloud:
        _, final = await cloud.tokens(await cloud.submit())
        assert (final["state"], final["error_code"], final["retryable"]) == ("failed", "engine_unavailable", True)


async def test_a_drain_gives_back_and_the_next_start_goes_on(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable, delay_s=0.02)
    async with cloud_engine(tmp_path, engine) as cloud:
        id = await cloud.submit()
        stream = asyncio.create_task(cloud.get(f"{JOBS}/{id}/stream"))
        await until(lambda: engine.requests)
        await asyncio.sleep(0.2)
        cloud.deps.requests.begin_drain()
        cut = (await stream).text
        assert '"final"' not in cut
        assert (await cloud.when(id, "queued"))["attempt"] == 1
        assert engine.open == {}
        assert (await cloud.post(JOBS, body("late"))).status_code == 503
    async with cloud_engine(tmp_path, FakeEngine(script=resumable)) as cloud:
        tokens, final = await cloud.tokens(id)
        assert (tokens, final["attempt"], final["usage"]["completion_tokens"]) == ([*ANSWER], 2, 40)


# --- who may ask what --------------------------------------------------------------------------------------------------------


async def test_tenants_see_their_own_jobs_only(cloud: Cloud) -> None:
    one, two = cloud.as_tenant("one"), cloud.as_tenant("two")
    id = await one.submit()
    assert await two.submit() != id
    for ask in (two.get(f"{JOBS}/{id}"), two.get(f"{JOBS}/{id}/stream"), two.post(f"{JOBS}/{id}/cancel", {})):
        assert (await ask).status_code == 404
    assert (await one.tokens(id))[0] == [*ANSWER]


async def test_a_new_key_of_the_same_name_is_the_same_tenant(cloud: Cloud) -> None:
    id = await cloud.as_tenant("one").submit()
    assert cloud.keys is not None
    cloud.keys.revoke("one")
    assert (await cloud.as_tenant("one").show(id))["id"] == id


async def test_keys(cloud: Cloud) -> None:
    cloud.headers = {"authorization": "Bearer ew_00000000_" + "0" * 43}
    assert (await cloud.post(JOBS, body())).status_code == 401
    other = cloud.as_tenant("scraper", ["metrics"])
    assert (await other.post(JOBS, body())).status_code == 403
    assert (await other.get(CLOUD)).status_code == 403
    assert (await cloud.as_tenant("device").get("/edgewise/v1/requests")).status_code == 403


async def test_what_the_cloud_says_of_itself(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path, residency="eu", prices=("tiny=1,2.5",)) as cloud:
        await cloud.tokens(await cloud.submit(body(work={"prompt": [1] * 20})))
        assert cloud.part is not None
        cloud.part.intake.catalog.forget()
        info = CloudInfo.model_validate((await cloud.as_tenant("one").get(CLOUD)).json())
        (model,) = info.models
        assert (info.tenant, info.residency) == ("one", "eu")
        assert (model.model, model.digest, model.reads) == ("tiny", DIGEST, "tokens")
        assert (model.price_in, model.price_out) == (1.0, 2.5)
        assert model.speed == pytest.approx(40 / 0.003)
        assert model.prefill == pytest.approx(20 / 0.002)
        assert info.queue_s["interactive"] == 0


async def test_the_name_of_a_set_is_that_of_its_member(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable)
    async with cloud_engine(tmp_path, models=Models([fake_model(engine, name="smollm2-135m-instruct")])) as cloud:
        id = await cloud.submit(body(work={"model": "starter"}, max_tokens=4))
        assert (await cloud.tokens(id))[0] == [*ANSWER[:4]]
        assert (await cloud.show(id))["model"] == "smollm2-135m-instruct"


async def test_a_model_of_another_name_is_found_by_digest_and_billed_as_what_it_is(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path, prices=("tiny=1,2.5",)) as cloud:
        id = await cloud.submit(body(work={"model": "gratis", "digest": DIGEST}, max_tokens=10))
        _, final = await cloud.tokens(id)
        assert final["usage"]["price"] == pytest.approx(3 / 1000 + 10 * 2.5 / 1000)
        assert (await cloud.show(id))["model"] == "tiny"


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"privacy": "private"}, 403, "permission_denied"),
        ({"privacy": "site"}, 403, "permission_denied"),
        ({"work": {"model": "other"}}, 404, "model_not_found"),
        ({"work": {"digest": "sha256:" + "0" * 64}}, 404, "model_not_found"),
        ({"work": {"prompt": []}}, 400, "invalid_value"),
        ({"work": {"prompt": [], "text": "hello"}}, 400, "invalid_value"),
        ({"work": {"prompt": [1] * 4096}}, 400, "context_length_exceeded"),
        ({"work": {"sampling": {"max_tokens": 4, "top_z": 1}}}, 400, "unknown_parameter"),
        ({"work": {"sampling": {}}}, 400, "invalid_value"),
        ({"work": {"sampling": {"max_tokens": 10**30}}}, 400, "invalid_value"),
        ({"work": {"sampling": {"max_tokens": 4, "seed": 2**64}}}, 400, "invalid_value"),
        ({"work": {"sampling": {"max_tokens": 4, "stop_token_ids": [10**30]}}}, 400, "invalid_value"),
        ({"work": {"sampling": {"max_tokens": 4, "logit_bias": {str(10**30): 1}}}}, 400, "invalid_value"),
        ({"work": {"prompt": [-1]}}, 400, "invalid_value"),
        ({"key": ""}, 400, "invalid_value"),
        ({"ttl_ms": 0}, 400, "invalid_value"),
        ({"ttl_ms": 10**400}, 400, "invalid_value"),
        ({"v": 2}, 400, "invalid_value"),
    ],
)
async def test_refused(cloud: Cloud, fields: dict[str, Any], status: int, code: str) -> None:
    response = await cloud.post(JOBS, body() | fields if "work" not in fields else body(**fields))
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert cloud.engine.requests == []


async def test_an_engine_of_the_site_takes_what_is_labelled_so(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path, site=True) as cloud:
        assert CloudInfo.model_validate((await cloud.get(CLOUD)).json()).site
        assert (await cloud.tokens(await cloud.submit(body(privacy="site"))))[0] == [*ANSWER]
        assert (await cloud.post(JOBS, body("p", privacy="private"))).status_code == 403


def test_an_engine_of_the_site_hands_nothing_on() -> None:
    with pytest.raises(ValueError, match="private address"):
        IntakeSettings(site=True, executor="http", upstream="https://api.example.com/v1")
    assert IntakeSettings(site=True, executor="http", upstream="http://192.168.1.9:8000/v1").site


@pytest.mark.parametrize(
    ("payload", "media", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xa1\x61k", "application/cbor", 400),
        (b"\xbf\x61k\x01\xff", "application/cbor", 400),
        (b"{}", "text/plain", 415),
        (b" " * 2000, "application/json", 413),
    ],
)
async def test_malformed_bodies(tmp_path: Path, payload: bytes, media: str, status: int) -> None:
    async with cloud_engine(tmp_path, max_request_bytes=1000) as cloud:
        response = await cloud.post(JOBS, payload, headers={"content-type": media})
        assert response.status_code == status, response.text


async def test_fields_of_later_versions_are_ignored(cloud: Cloud) -> None:
    assert (await cloud.tokens(await cloud.submit(body(max_tokens=2, tomorrow=1))))[1]["count"] == 2


async def test_a_back_end_without_models_is_no_lasting_refusal(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path, models=Models()) as cloud:
        response = await cloud.post(JOBS, body())
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")


async def test_quotas(tmp_path: Path) -> None:
    quotas = ("*.requests=2", "busy.concurrent=1", "small.tokens=100", "small.requests=9")
    async with cloud_engine(tmp_path, quotas=quotas) as cloud:
        any_one = cloud.as_tenant("any-one")
        for key in "ab":
            await any_one.tokens(await any_one.submit(body(key)))
        assert await any_one.submit(body("a"))  # a repeat is no further job
        error = error_of(response := await any_one.post(JOBS, body("c")))
        assert (response.status_code, error["param"]) == (429, "requests")
        assert 1 <= int(response.headers["retry-after"]) <= 86_400
        assert float(response.headers["x-edgewise-queue-s"]) == 0

        small = cloud.as_tenant("small")
        for key in "ab":
            await small.tokens(await small.submit(body(key)))
        assert error_of(await small.post(JOBS, body("c")))["param"] == "tokens"

        cloud.engine.hold.clear()
        busy = cloud.as_tenant("busy")
        id = await busy.submit(body("a"))
        assert error_of(await busy.post(JOBS, body("b")))["param"] == "concurrent"
        cloud.engine.hold.set()
        await busy.tokens(id)
        await busy.submit(body("b"))


async def test_the_queue_has_an_end_and_says_how_long_it_is(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable)
    engine.hold.clear()
    async with cloud_engine(tmp_path, engine, workers=1, max_queued=3) as cloud:
        ids = [await cloud.submit(body("0"))]
        await cloud.when(ids[0], "running")
        ids += [await cloud.submit(body(str(number))) for number in range(1, 4)]
        response = await cloud.post(JOBS, body("4"))
        assert response.status_code == 429
        assert float(response.headers["x-edgewise-queue-s"]) > 0
        assert (await cloud.get(CLOUD)).json()["queue_s"]["interactive"] > 0
        engine.hold.set()
        for id in ids:
            assert (await cloud.tokens(id))[0] == [*ANSWER]


async def test_metrics_for_an_autoscaler(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable)
    engine.hold.clear()
    async with cloud_engine(tmp_path, engine, workers=1) as cloud:
        first = await cloud.submit(body("0"))
        await cloud.when(first, "running")
        await cloud.submit(body("1", priority="background"))
        value = cloud.deps.metrics.registry.value
        background = {"priority": "background"}
        await until(lambda: value("edgewise_jobs_queued", background) == 1)
        assert value("edgewise_jobs_running", {"priority": "interactive"}) == 1
        await until(lambda: (value("edgewise_jobs_oldest_seconds", background) or 0) > 0)
        engine.hold.set()
        await cloud.tokens(first)
        await until(lambda: (value("edgewise_jobs_busy_seconds_total", {"kind": "generate"}) or 0) > 0)
        assert value("edgewise_jobs_ended_total", {"state": "succeeded"})


async def test_the_stream_is_alive_while_nothing_happens(tmp_path: Path) -> None:
    engine = FakeEngine(script=resumable)
    engine.hold.clear()
    async with cloud_engine(tmp_path, engine) as cloud:
        id = await cloud.submit(body(max_tokens=2))
        stream = asyncio.create_task(cloud.get(f"{JOBS}/{id}/stream"))
        for _ in range(3):  # turns, each later than the next comment is due
            await asyncio.sleep(1.1)
        engine.hold.set()
        text = (await stream).text
        assert text.count(": keep-alive") >= 2
        assert json.loads(text.strip().split("data: ")[-1])["state"] == "succeeded"


async def test_a_key_that_is_bound_to_a_device_speaks_for_that_one_only(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path) as cloud:
        assert cloud.keys is not None
        _, token = cloud.keys.create("line-1", device="dev")
        bound = {"authorization": f"Bearer {token}"}
        assert (await cloud.get(CLOUD, headers=bound)).json()["device"] == "dev"
        refused = await cloud.post(JOBS, body(device="other"), headers=bound)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "device")
        taken = [await cloud.post(JOBS, body(device=name), headers=bound) for name in ("dev", "")]
        assert [one.status_code for one in taken] == [202, 202]
        assert taken[0].json()["id"] == taken[1].json()["id"]


def test_the_tenant_of_a_device_at_a_broker_is_that_of_its_key(tmp_path: Path) -> None:
    with KeyStore(tmp_path / "keys.db") as keys:
        keys.create("dev")  # a key of this name is no key of this device
        assert tenant_of_device(keys, "dev", 0.0) == "mqtt:dev"
        keys.create("line-1", device="dev")
        assert tenant_of_device(keys, "dev", 0.0) == "line-1"
        keys.revoke("line-1")
        with pytest.raises(NotAuthenticated, match="'dev' has expired or was revoked"):
            tenant_of_device(keys, "dev", 0.0)
        keys.create("line-1", device="dev")  # rotated: its jobs go on
        assert tenant_of_device(keys, "dev", 0.0) == "line-1"
