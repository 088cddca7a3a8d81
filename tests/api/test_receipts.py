"""Receipts are stored and searchable, come as a header on request, and plans are explained without running anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.harness import CHAT, COMPLETIONS, Api, hello, make_api, prompt
from tests.fakes.engine import FakeEngine, Fault

RECEIPTS, PLAN = "/edgewise/v1/receipts", "/edgewise/v1/plan"


async def found(api: Api, query: str = "") -> list[dict[str, Any]]:
    response = await api.get(f"{RECEIPTS}{query}")
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


async def test_every_answers_receipt_is_stored_without_its_text() -> None:
    api = make_api()
    body = await api.answer(CHAT, hello(messages=[{"role": "user", "content": "a secret of mine"}]))
    events = await api.events(COMPLETIONS, prompt())
    receipts = [body["edgewise"], events[-1]["edgewise"]]
    stored = await found(api)
    assert [one["receipt"] for one in stored] == list(reversed(receipts))
    assert {one["state"] for one in stored} == {"done"}
    one = (await api.get(f"{RECEIPTS}/{body['edgewise']['request_id']}")).json()
    assert one["receipt"] == body["edgewise"]
    assert one["real_ms"] == body["edgewise"]["total_ms"]
    assert "secret" not in json.dumps(stored)


async def test_a_broken_answer_has_a_receipt_that_says_so() -> None:
    api = make_api(FakeEngine(fault=Fault(request=0, at=2)))
    response = await api.post(CHAT, hello())
    assert response.status_code == 500
    (one,) = await found(api)
    assert (one["state"], one["real_ms"]) == ("engine_error", None)


@pytest.mark.parametrize(
    ("query", "count"), [("?model=tiny", 2), ("?model=other", 0), ("?where=cloud", 0), ("?since=-60&limit=1", 1)]
)
async def test_receipts_are_searched(query: str, count: int) -> None:
    api = make_api()
    for _ in range(2):
        await api.answer(CHAT, hello())
    assert len(await found(api, query)) == count


@pytest.mark.parametrize("query", ["?limit=0", "?limit=x", "?since=soon", "?until=nan", "?color=red", "?where=moon"])
async def test_a_query_that_means_nothing_is_refused_by_name(query: str) -> None:
    response = await make_api().get(RECEIPTS + query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query[1:].split("=")[0]


async def test_a_receipt_nobody_knows_is_not_found() -> None:
    assert (await make_api().get(f"{RECEIPTS}/req_none")).status_code == 404


async def test_the_receipt_comes_as_a_header_on_request() -> None:
    api = make_api()
    assert "x-edgewise-receipt" not in (await api.post(CHAT, hello())).headers
    response = await api.post(CHAT, hello(), headers={"x-edgewise-receipt": "header"})
    assert json.loads(response.headers["x-edgewise-receipt"]) == response.json()["edgewise"]
    for body, value in ((hello(stream=True), "header"), (hello(), "body")):
        error = await api.refusal(CHAT, body, 400, headers={"x-edgewise-receipt": value})
        assert error["param"] == "X-Edgewise-Receipt"


async def test_a_plan_of_a_pipeline_shows_its_stages_and_runs_nothing() -> None:
    api = make_api()
    body = {"pipeline": "draft-and-rewrite", "input": {"topic": "rain", "draft_model": "tiny", "rewrite_model": "tiny"}}
    told = await api.answer(PLAN, body)
    assert [(stage["name"], stage["where"]) for stage in told["stages"]] == [("draft", "local"), ("rewrite", "local")]
    assert "256 tokens are expected" in told["stages"][1]["estimates"][0]
    assert api.engine.requests == []
    for wrong, status in ({"pipeline": "no-such"}, 404), ({"pipeline": "draft-and-rewrite", "color": "red"}, 400):
        await api.refusal(PLAN, wrong, status)


@pytest.mark.parametrize(
    "body",
    [hello(), prompt(), {"model": "tiny", "input": "hi"}, hello(stream=True), hello(max_tokens=7)],
)
async def test_a_plan_is_told_and_nothing_is_run(body: dict[str, Any]) -> None:
    api = make_api()
    response = await api.post(PLAN, body, headers={"x-edgewise-privacy": "site"})
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["model"], told["privacy"]) == ("tiny", "site")
    assert [(stage["stage"], stage["where"]) for stage in told["stages"]] == [("generate", "local")]
    assert api.engine.requests == []
    assert await found(api) == []


async def test_what_cannot_be_run_cannot_be_planned() -> None:
    api = make_api()
    for body, status in (({"model": "tiny"}, 400), (hello(model="other"), 404), (hello(max_tokens=10**6), 400)):
        assert (await api.post(PLAN, body)).status_code == status
