"""The outbox over an engine of ours, a real database and a real receiver: what is taken, what waits, what arrives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from edgewise.api.app import create_app
from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import ConfigError, NoPlace
from edgewise.core.privacy import Labels, Privacy
from edgewise.core.settings import load_settings
from edgewise.edge.outbox.part import Outbox
from edgewise.edge.placement.protocol import LinkState
from edgewise.pipeline.model import Models
from edgewise.pipeline.plan import Demand, Errand, LocalPlanner, Plan
from edgewise.security.fetch import UrlRefused
from tests.api.harness import LOOPBACK, error_of, until
from tests.edge.outbox.receiver import receiving
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import fake_model

JOBS = "/edgewise/v1/jobs"
ENDED = ("succeeded", "failed", "rejected", "expired", "cancelled")
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Link:
    """A link to a cloud that a test cuts and mends."""

    link: LinkState = field(default_factory=lambda: LinkState(True))


class CloudOnly(LocalPlanner):
    """A planner of ours: everything goes over the link, to the same engine."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        if not self._link.link.up:
            raise NoPlace("The cloud cannot be reached.")
        return await super().plan(errand, demands)


@dataclass
class Device:
    client: httpx.AsyncClient
    engine: FakeEngine
    outbox: Outbox
    deps: ApiDependencies

    async def leave(self, status: int = 202, **fields: Any) -> dict[str, Any]:
        body = {"url": "/v1/completions", "body": {"model": "tiny", "prompt": "hi", "max_tokens": 8}, **fields}
        headers = body.pop("headers", {})
        response = await self.client.post(JOBS, json=body, headers=headers)
        assert response.status_code == status, response.text
        shown: dict[str, Any] = response.json()
        return shown

    async def show(self, id: str) -> dict[str, Any]:
        shown: dict[str, Any] = (await self.client.get(f"{JOBS}/{id}")).json()
        return shown

    async def until(self, id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(1000):
            if condition(job := await self.show(id)):
                return job
            await asyncio.sleep(0.01)
        raise AssertionError(f"it did not come true: {job}")

    async def ended(self, id: str) -> dict[str, Any]:
        return await self.until(id, lambda job: job["state"] in ENDED)


@asynccontextmanager
async def device(
    home: Path,
    *,
    link: Link | None = None,
    engine: FakeEngine | None = None,
    labels: Labels | None = None,
    **settings: Any,
) -> AsyncIterator[Device]:
    """A device's API with its outbox, in process; `settings` are of the section [outbox]."""
    engine = engine or FakeEngine()
    models = Models([fake_model(engine)])
    deps = ApiDependencies(models=models, labels=labels or Labels(), pipelines_folder=home / "pipelines")
    if link is not None:
        deps.planner = CloudOnly(link)
    overrides = {"home": home, **{f"outbox.{name}": value for name, value in settings.items()}}
    loaded = load_settings(overrides=overrides, environ={}, default_file=home / "none.toml")
    outbox = Outbox(loaded.settings, deps, link=link)
    outbox.start()
    transport = httpx.ASGITransport(create_app(deps, outbox.routers))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=LOOPBACK) as client:
            yield Device(client, engine, outbox, deps)
    finally:
        await outbox.stop()
        deps.state.close()


async def test_a_job_is_answered_as_its_route_answers(tmp_path: Path) -> None:
    async with device(tmp_path) as edge:
        taken = await edge.leave()
        assert (taken["state"], taken["response"]) == ("queued", None)
        job = await edge.ended(taken["id"])
        assert (job["state"], job["response"]["status_code"]) == ("succeeded", 200)
        answer = job["response"]["body"]
        again = {"model": "tiny", "prompt": "hi", "max_tokens": 8, "seed": job["receipt"]["seed"]}
        direct = (await edge.client.post("/v1/completions", json=again)).json()
        assert answer["choices"] == direct["choices"]
        assert answer["usage"] == direct["usage"]
        assert job["receipt"] == answer["edgewise"]
        assert (job["receipt"]["request_id"], job["receipt"]["priority"]) == (job["id"], "background")
        listed = (await edge.client.get(JOBS)).json()["data"]
        assert [(one["id"], one["state"], one["response"]) for one in listed] == [(job["id"], "succeeded", None)]
        assert (await edge.client.delete(f"{JOBS}/{job['id']}")).json()["deleted"] is True
        assert (await edge.client.get(f"{JOBS}/{job['id']}")).status_code == 404


async def test_what_cannot_be_right_is_refused_at_once_and_by_name(tmp_path: Path) -> None:
    async with device(tmp_path, ttl_s=10.0) as edge:

        async def refused(status: int, param: str, **fields: Any) -> None:
            error = (await edge.leave(status, **fields))["error"]
            assert error["param"] == param, error

        await refused(400, "url", url="/v1/embeddings")
        await refused(400, "temperature", body={"model": "tiny", "prompt": "hi", "temperature": 9})
        await refused(404, "model", body={"model": "absent", "prompt": "hi"})
        await refused(400, "stream", body={"model": "tiny", "prompt": "hi", "stream": True})
        await refused(400, "ttl_ms", ttl_ms=10_001)
        await refused(400, "deliver", deliver="mqtt")
        await refused(400, "where", where=[])
        await refused(400, "colour", colour="red")
        assert (await edge.leave(400, deliver="http://hub.example/x"))["error"]["code"] == UrlRefused.code
        assert (await edge.leave(400, deliver="https://10.0.0.1/x"))["error"]["code"] == UrlRefused.code
        assert edge.engine.requests == []


async def test_what_only_the_cloud_can_do_waits_for_the_link_and_survives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.edge.outbox.runner._NOTICED_S", 0.5)
    link = Link(LinkState(False, "It was cut."))
    async with device(tmp_path, link=link) as edge:
        one = await edge.leave(key="k")
        other = await edge.leave(body={"model": "theirs", "prompt": "hi"})  # only the cloud may know this model
        job = await edge.until(one["id"], lambda job: job["waiting"] is not None)
        assert (job["state"], job["waiting"]) == ("queued", "The cloud cannot be reached.")
        await edge.until(other["id"], lambda job: "theirs" in (job["waiting"] or ""))
    async with device(tmp_path, link=link) as edge:
        assert (await edge.leave(key="k"))["id"] == one["id"]
        assert edge.engine.requests == []
        link.link = LinkState(True)
        assert (await edge.ended(one["id"]))["state"] == "succeeded"
        gone = await edge.ended(other["id"])
        assert (gone["state"], gone["response"]["status_code"]) == ("rejected", 404)
        assert len(edge.engine.requests) == 1


async def test_a_place_that_no_link_can_give_is_no_reason_to_wait(tmp_path: Path) -> None:
    async with device(tmp_path) as edge:
        job = await edge.ended((await edge.leave(where=["cloud"]))["id"])
        assert (job["state"], job["response"]["body"]["error"]["code"]) == ("failed", "no_place")


async def test_a_job_that_was_running_at_the_end_of_the_service_gives_the_same_answer_later(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine) as edge:
        job = await edge.leave(body={"model": "tiny", "prompt": "hi", "max_tokens": 8, "temperature": 1})
        await until(lambda: engine.requests)
    assert engine.pages_used == 0
    async with device(tmp_path) as edge:
        await edge.ended(job["id"])
        assert edge.engine.requests[0].sampling == engine.requests[0].sampling
        assert edge.engine.requests[0].id == f"{job['id']}.1/0"  # the first one was called off


async def test_an_answer_that_was_called_off_elsewhere_is_asked_for_once_more(tmp_path: Path) -> None:
    engine = FakeEngine(fault=Fault(0, 2, code="cancelled"))
    async with device(tmp_path, engine=engine) as edge:
        job = await edge.ended((await edge.leave())["id"])
        assert (job["state"], len(engine.requests)) == ("succeeded", 2)
        assert [request.id.split("/")[0] for request in engine.requests] == [job["id"], f"{job['id']}.1"]


async def test_a_cancelled_job_ends_within_a_step_wherever_it_is(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine, concurrency=1) as edge:
        running, queued = await edge.leave(), await edge.leave()
        await until(lambda: engine.open)
        for job in (queued, running):
            cancelled = (await edge.client.post(f"{JOBS}/{job['id']}/cancel")).json()
            assert (cancelled["state"], cancelled["response"]["body"]["error"]["code"]) == ("cancelled", "cancelled")
        await until(lambda: not engine.open)
        assert len(engine.requests) == 1
        engine.hold.set()
        assert (await edge.ended((await edge.leave())["id"]))["state"] == "succeeded"


async def test_a_job_past_its_time_is_expired(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine) as edge:
        job = await edge.ended((await edge.leave(ttl_ms=200))["id"])
        assert (job["state"], job["response"]["status_code"]) == ("expired", 504)
        await until(lambda: not engine.open)


# --- delivery --------------------------------------------------------------------------------------------------------------


async def test_a_result_is_delivered_once_and_signed_as_openais_client_wants_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with receiving() as receiver:
        hosts: dict[str, Any] = {"webhook_hosts": ("http://127.0.0.1",), "webhook_secret_file": tmp_path / "secret"}
        async with device(tmp_path, **hosts) as edge:
            job = await edge.leave(deliver=receiver.url)
            job = await edge.until(job["id"], lambda job: job["delivery"]["state"] == "delivered")
            assert job["delivery"]["tries"] == 1
        async with device(tmp_path, **hosts):
            await asyncio.sleep(0.2)
    (delivery,) = receiver.got
    assert delivery.headers["idempotency-key"] == delivery.id == job["id"]
    assert delivery.event["type"] == "edgewise.job.succeeded"
    assert delivery.event["data"]["response"] == job["response"]
    webhooks = OpenAI(api_key="none", webhook_secret=SECRET).webhooks
    webhooks.verify_signature(delivery.body, delivery.headers)
    with pytest.raises(InvalidWebhookSignatureError):
        webhooks.verify_signature(delivery.body + b" ", delivery.headers)


@pytest.mark.parametrize("text", ["whsec_", "whsec_a", "whsec_====", "two words"])
def test_a_secret_that_is_none_ends_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    overrides = {"home": tmp_path, "outbox.webhook_secret_file": tmp_path / "secret"}
    loaded = load_settings(overrides=overrides, environ={}, default_file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"outbox\.webhook_secret_file"):
        Outbox(loaded.settings, ApiDependencies(models=Models()))


async def test_a_receiver_that_fails_or_answers_late_sees_the_same_message_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.edge.outbox.courier.FIRST_S", 0.05)
    with receiving() as receiver:
        receiver.answers = [500] * 1000
        async with device(tmp_path, webhook_hosts=("http://127.0.0.1",), webhook_timeout_s=1.0) as edge:
            job = await edge.leave(deliver=receiver.url)
            await edge.until(job["id"], lambda job: job["delivery"]["error"] == "The receiver answered 500.")
            receiver.answers = [302] * 1000
            await edge.until(job["id"], lambda job: "302" in job["delivery"]["error"])
            receiver.pause_s = 3.0
            receiver.answers = []
            await edge.until(job["id"], lambda job: "did not answer" in (job["delivery"]["error"] or ""))
            receiver.pause_s = 0.0
            await edge.until(job["id"], lambda job: job["delivery"]["state"] == "delivered")
    assert len(receiver.got) >= 4
    assert len({(delivery.id, delivery.body) for delivery in receiver.got}) == 1


async def test_a_receiver_that_does_not_answer_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.edge.outbox.courier.pause_s", lambda sends: 900.0)
    with receiving() as receiver, receiving() as dead:
        dead.pause_s = 1.5
        async with device(tmp_path, webhook_hosts=("http://127.0.0.1",), webhook_timeout_s=1.0) as edge:
            lost = [(await edge.leave(deliver=dead.url))["id"] for _ in range(12)]
            for id in lost:
                await edge.ended(id)
            job = await edge.leave(deliver=receiver.url)
            await edge.until(job["id"], lambda job: job["delivery"]["state"] == "delivered")
            await edge.until(lost[0], lambda job: job["delivery"]["tries"] > 0)
            tries = [(await edge.show(id))["delivery"]["tries"] for id in lost]
    assert sum(tries) < len(lost)  # those that were under way; the rest is not tried


async def test_a_receiver_that_is_gone_for_good_is_not_tried_again_and_the_result_is_kept(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.answers = [410]
        async with device(tmp_path, webhook_hosts=("http://127.0.0.1",)) as edge:
            job = await edge.leave(deliver=receiver.url)
            job = await edge.until(job["id"], lambda job: job["delivery"]["state"] == "failed")
            assert job["response"]["status_code"] == 200
            await asyncio.sleep(0.1)
    assert len(receiver.got) == 1


async def test_a_host_that_is_named_nowhere_is_not_reached(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with device(tmp_path) as edge:
            named = receiver.url.replace("http://127.0.0.1", "https://localhost")
            job = await edge.leave(deliver=named)
            shown = await edge.until(job["id"], lambda job: job["delivery"]["tries"] > 0)
            assert "allow it by name, in `outbox.webhook_hosts`" in shown["delivery"]["error"]
    assert receiver.got == []


@pytest.mark.parametrize(
    ("label", "url", "status"),
    [
        ("private", "https://hub.example/x", 403),
        ("private", "http://hub.local/x", 403),
        ("private", "http://127.0.0.1:9/x", 202),
        ("site", "https://hub.example/x", 403),
        ("site", "http://hub.local/x", 202),
        ("any", "https://hub.example/x", 202),
    ],
)
async def test_an_answer_goes_no_further_than_its_label(tmp_path: Path, label: str, url: str, status: int) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine, webhook_hosts=("http://hub.local", "http://127.0.0.1")) as edge:
        told = await edge.leave(status, deliver=url, headers={"X-Edgewise-Privacy": label})
        if status == 403:
            assert told["error"]["param"] == "deliver"
        else:
            assert told["privacy"] == label


async def test_the_label_of_the_model_counts_too(tmp_path: Path) -> None:
    async with device(tmp_path, labels=Labels(models={"tiny": Privacy.PRIVATE})) as edge:
        assert (await edge.leave(403, deliver="https://hub.example/x"))["error"]["param"] == "deliver"


async def test_the_label_that_counts_is_the_one_when_the_answer_goes(tmp_path: Path) -> None:
    """Between a job and its answer the configuration may change, and a model become known."""
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine) as edge:
        job = await edge.leave(deliver="https://hub.example/x")
        edge.deps.labels = Labels(models={"tiny": Privacy.PRIVATE})
        await edge.until(job["id"], lambda job: job["state"] == "queued" or job["state"] == "running")
        edge.outbox._runner.drop(job["id"])
        engine.hold.set()
        told = await edge.until(job["id"], lambda job: job["delivery"]["state"] == "failed")
        assert told["receipt"]["privacy"] == "private"
        assert "further than its label 'private' allows" in told["delivery"]["error"]
        assert told["response"]["status_code"] == 200  # it can be polled


async def test_metrics_agree_with_the_table(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    async with device(tmp_path, engine=engine, concurrency=1) as edge:

        def gauges() -> list[float | None]:
            value = edge.deps.metrics.registry.value
            states = [value("edgewise_outbox_jobs", {"state": state}) for state in ("queued", "running", "succeeded")]
            return [*states, value("edgewise_outbox_bytes"), value("edgewise_outbox_undelivered")]

        jobs = [await edge.leave() for _ in range(3)]
        await until(lambda: gauges()[:3] == [2, 1, 0])
        engine.hold.set()
        for job in jobs:
            await edge.ended(job["id"])
        await until(lambda: gauges()[:3] == [0, 0, 3])
        assert gauges()[3] == (await edge.outbox.store.counts()).bytes > 0
        for job in jobs:
            await edge.client.delete(f"{JOBS}/{job['id']}")
        await until(lambda: gauges() == [0, 0, 0, 0, 0])


async def test_jobs_are_refused_while_the_service_ends(tmp_path: Path) -> None:
    async with device(tmp_path) as edge:
        edge.deps.requests.begin_drain()
        response = await edge.client.post(JOBS, json={"url": "/v1/completions", "body": {}})
        assert (response.status_code, error_of(response)["code"]) == (503, "shutting_down")
        assert json.loads(response.text)


# --- what a job may be -----------------------------------------------------------------------------------------------------


async def test_a_chat_and_a_pipeline_can_be_deferred(tmp_path: Path) -> None:
    async with device(tmp_path) as edge:
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        told = await edge.ended((await edge.leave(url="/v1/chat/completions", body=chat))["id"])
        assert told["response"]["body"]["object"] == "chat.completion"
        wanted = {"input": {"topic": "cats", "draft_model": "tiny", "rewrite_model": "tiny"}}
        told = await edge.ended((await edge.leave(url="/edgewise/v1/pipelines/draft-and-rewrite", body=wanted))["id"])
        assert told["state"] == "succeeded", told
        assert told["response"]["body"]["output"]["rewrite"]["text"]
        assert [stage["name"] for stage in told["receipt"]["stages"]] == ["draft", "rewrite"]
        placed = await edge.leave(400, url="/edgewise/v1/pipelines/draft-and-rewrite", body=wanted, where=["local"])
        assert placed["error"]["param"] == "where"
        assert (await edge.leave(404, url="/edgewise/v1/pipelines/absent", body=wanted))["error"]["param"] == "name"
        wrong = await edge.leave(400, url="/edgewise/v1/pipelines/draft-and-rewrite", body={"input": {"colour": "red"}})
        assert wrong["error"]["param"] == "input"


async def test_a_private_pipeline_is_delivered_no_further_than_a_private_request(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "mine.toml").write_text(
        'name = "mine"\n[[stages]]\nname = "a"\nkind = "generate"\nmodel = "tiny"\nprivacy = "private"\n'
        'input = { user = "hi" }\n'
    )
    async with device(tmp_path) as edge:
        asked: dict[str, Any] = {"url": "/edgewise/v1/pipelines/mine", "body": {}}
        assert (await edge.leave(403, **asked, deliver="https://hub.example/x"))["error"]["param"] == "deliver"
        assert (await edge.ended((await edge.leave(**asked))["id"]))["state"] == "succeeded"
