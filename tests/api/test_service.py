"""Health, readiness, metrics, memory, requests, events, models."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from edgewise.api.deps import Limits
from edgewise.api.events import EventLog
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EngineUnavailable
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api, prompt, until
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import DIGEST, says


async def test_alive() -> None:
    response = await make_api(version="1.2.3").get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "version": "1.2.3"})


async def test_an_engine_that_keeps_failing_is_not_health() -> None:
    api = make_api(FakeEngine(state="failed"))
    for path in ("/healthz", "/readyz"):
        response = await api.get(path)
        assert response.status_code == 503
        assert "tiny" in response.json()["reason"]
        assert "started again about once a minute" in response.json()["reason"]


async def test_ready_means_a_real_token() -> None:
    api = make_api()
    response = await api.get("/readyz")
    assert response.status_code == 200
    (probe,) = api.engine.requests
    assert probe.sampling.max_tokens == 1
    assert api.engine.pages_used == 0
    await api.get("/readyz")
    assert len(api.engine.requests) == 1  # the first token is proof enough for a while


async def test_a_users_token_is_proof_and_an_old_one_is_not() -> None:
    clock = FakeClock()
    api = make_api(clock=clock, ready_max_age_s=30)
    await api.answer(CHAT, hello())
    clock.advance(30)
    assert (await api.get("/readyz")).json()["token_age_s"] == 30
    assert len(api.engine.requests) == 1
    clock.advance(1)
    assert (await api.get("/readyz")).json()["token_age_s"] == 0
    assert len(api.engine.requests) == 2


async def test_checks_at_once_share_one_probe() -> None:
    api = make_api()
    responses = await asyncio.gather(*(api.get("/readyz") for _ in range(10)))
    assert {response.status_code for response in responses} == {200}
    assert len(api.engine.requests) == 1


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (FakeEngine(state="restarting"), "restarting"),
        (FakeEngine(refuse=EngineUnavailable("The engine is away.")), "The engine is away."),
        (FakeEngine(fault=Fault(0, 0, message="It broke.")), "It broke."),
        (FakeEngine(script=lambda request: []), "without a token"),
    ],
)
async def test_not_ready_says_why(engine: FakeEngine, reason: str) -> None:
    response = await make_api(engine).get("/readyz")
    assert response.status_code == 503
    assert reason in response.json()["reason"]
    assert "retry-after" in response.headers


async def test_a_failed_probe_is_not_repeated_at_once_and_heals() -> None:
    clock = FakeClock()
    api = make_api(FakeEngine(fault=Fault(0, 0)), clock=clock)
    assert (await api.get("/readyz")).status_code == 503
    assert (await api.get("/readyz")).status_code == 503
    assert len(api.engine.requests) == 1
    clock.advance(1)
    assert (await api.get("/readyz")).status_code == 200


async def test_not_ready_while_shutting_down() -> None:
    api = make_api()
    api.deps.requests.begin_drain()
    assert (await api.get("/readyz")).status_code == 503
    assert (await api.get("/healthz")).status_code == 200


async def test_the_models() -> None:
    api = make_api()
    listed = (await api.get("/v1/models")).json()
    shown = (await api.get("/v1/models/tiny")).json()
    assert listed == {"object": "list", "data": [shown]}
    assert (shown["id"], shown["object"], shown["created"], shown["owned_by"]) == (
        "tiny",
        "model",
        1_800_000_000,
        "edgewise",
    )
    about = {
        "aliases": ["starter"],
        "context": 4096,
        "digest": DIGEST,
        "chat": True,
        "loaded": True,
        "where": "local",
        "media": [],
    }
    assert shown["edgewise"] == about
    assert (await api.get("/v1/models/starter")).json() == shown


async def test_metrics() -> None:
    api = make_api(FakeEngine(script=says("Paris.")))
    await api.answer(CHAT, hello())
    await api.events(COMPLETIONS, prompt())
    await api.get("/nope")
    await api.refusal(CHAT, {})
    response = await api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    for line in (
        'edgewise_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1.0',
        'edgewise_requests_total{method="POST",route="/v1/chat/completions",status="400"} 1.0',
        'edgewise_requests_total{method="POST",route="/v1/completions",status="200"} 1.0',
        'edgewise_requests_total{method="other",route="other",status="404"} 1.0',
        "edgewise_requests_in_flight 0.0",
        'edgewise_ttft_seconds_count{model="tiny"} 2.0',
        'edgewise_itl_seconds_count{model="tiny"} 12.0',
        'edgewise_e2e_seconds_count{model="tiny"} 2.0',
        'edgewise_prompt_tokens_total{model="tiny"} 23.0',
        'edgewise_completion_tokens_total{model="tiny"} 14.0',
        'edgewise_engine_up{model="tiny"} 1.0',
        'edgewise_engine_pages_free{model="tiny"} 1024.0',
        'edgewise_engine_aborted_total{model="tiny"} 0.0',
    ):
        assert f"\n{line}\n" in response.text


async def test_metrics_are_there_when_the_engine_is_not() -> None:
    class Mute(FakeEngine):
        async def stats(self) -> Any:
            raise EngineUnavailable("The engine is away.")

    response = await make_api(Mute()).get("/metrics")
    assert 'edgewise_engine_up{model="tiny"} 0.0' in response.text


async def test_counters_survive_a_restart_of_the_engine() -> None:
    api = make_api()
    for aborted in (5, 7, 2):
        api.engine.aborted = aborted
        text = (await api.get("/metrics")).text
    assert 'edgewise_engine_aborted_total{model="tiny"} 9.0' in text


async def test_memory() -> None:
    (report,) = (await make_api().get("/edgewise/v1/memory")).json()["models"]
    assert report["model"] == "tiny"
    assert report["booked_bytes"] == sum(report["booked"].values())


async def test_memory_says_why_it_cannot_tell() -> None:
    class Mute(FakeEngine):
        async def memory(self) -> Any:
            raise EngineUnavailable("The engine is away.")

    (report,) = (await make_api(Mute()).get("/edgewise/v1/memory")).json()["models"]
    assert report["error"] == {"code": "engine_unavailable", "message": "The engine is away."}


async def test_requests_in_flight_and_finished_without_their_text() -> None:
    engine = FakeEngine(script=says("answer text"))
    engine.hold.clear()
    api = make_api(engine)
    asking = asyncio.create_task(api.post(CHAT, hello(stream=True)))
    await until(lambda: engine.requests)
    await asyncio.sleep(0)
    (record,) = (await api.get("/edgewise/v1/requests")).json()["in_flight"]
    assert (record["route"], record["model"], record["stream"], record["status"]) == (CHAT, "tiny", True, None)
    engine.hold.set()
    await asking
    await api.refusal(CHAT, hello(model="nope"), 404)
    response = await api.get("/edgewise/v1/requests")
    refused, answered = response.json()["finished"]
    assert (refused["status"], refused["error"], refused["model"]) == (404, "model_not_found", None)
    assert (answered["status"], answered["completion_tokens"], answered["prompt_tokens"]) == (200, 12, 21)
    assert answered["duration_ms"] >= answered["ttft_ms"] > 0
    assert "answer text" not in response.text
    assert '"hi"' not in response.text


async def test_events_as_a_list() -> None:
    clock = FakeClock(now=100.0)
    api = make_api(clock=clock)
    api.deps.events.emit("engine_restarted", "The engine was restarted.", pid=7)
    clock.advance(1)
    api.deps.events.emit("drained", "Done.")
    events = (await api.get("/edgewise/v1/events")).json()["events"]
    assert events[0] == {
        "id": 1,
        "time": 100.0,
        "kind": "engine_restarted",
        "message": "The engine was restarted.",
        "fields": {"pid": 7},
    }
    assert [event["id"] for event in (await api.get("/edgewise/v1/events?after=1")).json()["events"]] == [2]
    for after in ("x", "-1", "1" * 30):
        assert (await api.get(f"/edgewise/v1/events?after={after}")).status_code == 400


async def turns() -> None:
    """So many that whoever can go on has done so, however late each of them comes."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def test_events_as_they_come_resume_and_end_with_the_service() -> None:
    api = make_api(limits=Limits(keepalive_s=30))
    for kind in ("one", "two"):
        api.deps.events.emit(kind, "…")
    headers = {"accept": "text/event-stream", "last-event-id": "1"}
    following = asyncio.create_task(api.get("/edgewise/v1/events", headers=headers))
    await turns()
    api.deps.events.emit("three", "…")
    await turns()
    api.deps.requests.begin_drain()
    text = (await following).text
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert [block.split("\n")[:2] for block in blocks] == [["event: two", "id: 2"], ["event: three", "id: 3"]]
    assert json.loads(blocks[1].split("\n")[2].removeprefix("data: "))["kind"] == "three"


async def test_the_ring_forgets_the_oldest() -> None:
    log = EventLog(clock=FakeClock(), keep=2)
    for number in range(4):
        log.emit("k", str(number))
    assert [event.id for event in log.since()] == [3, 4]


async def test_openapi_describes_the_bodies() -> None:
    document = (await make_api().get("/openapi.json")).json()
    schema = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "messages", "top_k"} <= schema["properties"].keys()


async def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = (await make_api().get("/openapi.json")).json()
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        part = document
        for key in reference.split("/"):
            part = part[key]
