"""Answers through a cloud: a real device, a real cloud, and a link between them that breaks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker
from tests.e2e.pair import TOKEN, Pair, paired, segments

Brokers = Callable[[], AbstractContextManager[BrokerProcess]]
EVENT = b"id: 1."  # every event of a first attempt


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Waits long for a lost link."""
    with paired(CLOUD__PATIENCE_S="90") as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[Pair]:
    """Hardly waits for one, has a short context, and a cloud with more models."""
    with paired(pictures=True, only_cloud="large", CLOUD__PATIENCE_S="1", ENGINE__MAX_CONTEXT="64") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(pair: Pair) -> str:
    return str(pair.complete()["choices"][0]["text"])


@pytest.fixture(autouse=True)
def link_up(request: pytest.FixtureRequest) -> None:
    for name in {"pair", "hasty"} & {*request.fixturenames}:
        request.getfixturevalue(name).wait_link()


def text(answer: dict[str, object]) -> str:
    return str(answer["choices"][0]["text"])  # type: ignore[index]


def test_the_cloud_answers_and_the_receipt_says_so(pair: Pair) -> None:
    answer = pair.complete()
    stage = answer["edgewise"]["stages"][0]
    assert (stage["where"], segments(answer)) == ("cloud", [("cloud", 0)])
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["edgewise"]["costs"]["up_bytes"] > 100
    assert answer["edgewise"]["costs"]["down_bytes"] > 1000


def test_what_is_private_is_answered_here_in_the_same_words(pair: Pair, undisturbed: str) -> None:
    marker = b"vqxzj"
    answer = pair.complete(marker.decode(), headers={"x-edgewise-privacy": "private"})
    assert answer["edgewise"]["stages"][0]["where"] == "local"
    assert text(pair.complete(headers={"x-edgewise-privacy": "private"})) == undisturbed
    assert not pair.link.saw(marker)


@pytest.mark.parametrize("at", [1, 5, 14, 23])
def test_a_link_that_breaks_twice_changes_nothing(pair: Pair, undisturbed: str, at: int) -> None:
    before = pair.link.connections
    """Each time within the event that brings a token, so that there is something left to ask for."""
    first = pair.link.act_after(at, "reset", text=TOKEN)
    second = pair.link.act_after(at + 3, "reset", text=TOKEN)
    answer = pair.complete()
    assert first.is_set()
    assert second.is_set()
    assert pair.link.connections > before
    assert (text(answer), segments(answer)) == (undisturbed, [("cloud", 0)])


def test_a_link_that_is_gone_for_a_while_is_waited_for(pair: Pair, undisturbed: str) -> None:
    cut = pair.link.act_after(6, "cut", text=TOKEN)
    with httpx.stream(
        "POST", f"{pair.device.url}/v1/completions", json=pair.body(stream=True), timeout=120
    ) as response:
        lines = response.iter_lines()
        next(lines)
        assert cut.wait(60)
        time.sleep(1.0)
        pair.link.restore()
        body = "\n".join(lines)
    assert '"where":"cloud"' in body.replace(" ", "")
    assert '"where":"local","offset"' not in body.replace(" ", "")


def test_a_dead_engine_of_the_cloud_is_not_noticed(pair: Pair, undisturbed: str) -> None:
    hold = pair.link.act_after(8, "hold", text=TOKEN)
    with httpx.stream(
        "POST", f"{pair.device.url}/v1/completions", json=pair.body(stream=True), timeout=120
    ) as response:
        lines = response.iter_lines()
        assert hold.wait(60)
        os.kill(pair.cloud.engine_pid(), signal.SIGKILL)
        pair.link.restore()
        body = "\n".join(lines)
    assert body.rstrip().endswith("[DONE]")
    assert text(pair.complete()) == undisturbed


def test_the_engine_of_the_device_may_die_meanwhile(pair: Pair, undisturbed: str) -> None:
    hold = pair.link.act_after(8, "hold", text=TOKEN)
    with httpx.stream(
        "POST", f"{pair.device.url}/v1/completions", json=pair.body(stream=True), timeout=120
    ) as response:
        assert hold.wait(60)
        os.kill(pair.device.engine_pid(), signal.SIGKILL)
        pair.link.restore()
        body = "\n".join(response.iter_lines())
    assert body.rstrip().endswith("[DONE]")
    assert '"where":"local","offset"' not in body.replace(" ", "")


async def _leave_at_random(url: str, bodies: Sequence[Mapping[str, Any]]) -> int:
    """Ask for all at once and leave each stream after some events, of which there are three at least; how many were left."""
    rng = random.Random(5)

    async def one(client: httpx.AsyncClient, body: Mapping[str, Any]) -> bool:
        events = rng.choice((0, 1, 2, 10, 30, 60))
        async with client.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                events -= line.startswith("data:")
                if events < 0:
                    return True
        return False

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=len(bodies))) as client:
        return sum(await asyncio.gather(*(one(client, body) for body in bodies)))


def test_clients_that_leave_at_random_leave_nothing_behind(pair: Pair) -> None:
    bodies = [pair.body(f"storm {number}", max_tokens=100, stream=True) for number in range(30)]
    assert asyncio.run(_leave_at_random(pair.device.url, bodies)) > 5
    limit = time.monotonic() + 120
    names = (
        "edgewise_requests_in_flight",
        "edgewise_engine_running",
        "edgewise_engine_waiting",
        "edgewise_jobs_running",
    )
    while True:
        both = [httpx.get(f"{side.url}/metrics", timeout=120).text.splitlines() for side in (pair.device, pair.cloud)]
        busy = [line for lines in both for line in lines if line.startswith(names) and not line.endswith(" 0.0")]
        if not busy:
            break
        assert time.monotonic() < limit, busy
        time.sleep(0.1)
    for side in (pair.device, pair.cloud):
        assert "Traceback" not in side.log.read_text()


def test_a_device_that_is_killed_in_a_stream_comes_back_and_answers(pair: Pair) -> None:
    hold = pair.link.act_after(8, "hold", text=TOKEN)
    with httpx.stream(
        "POST", f"{pair.device.url}/v1/completions", json=pair.body(stream=True), timeout=120
    ) as response:
        assert hold.wait(60)
        pair.device.kill()
        with pytest.raises(httpx.HTTPError):
            response.read()
    pair.link.restore()
    pair.device.start()
    pair.device.wait_ready()
    pair.wait_link()
    assert segments(pair.complete()) == [("cloud", 0)]


def test_a_cloud_that_is_killed_and_comes_back_goes_on_with_the_stream(pair: Pair, undisturbed: str) -> None:
    hold = pair.link.act_after(9, "hold", text=TOKEN)
    with httpx.stream(
        "POST", f"{pair.device.url}/v1/completions", json=pair.body(stream=True), timeout=120
    ) as response:
        assert hold.wait(60)
        for process in (pair.cloud.pid, *(child.pid for child in pair.cloud.children())):
            os.kill(process, signal.SIGKILL)
        pair.cloud.process.wait()
        pair.link.restore()
        pair.cloud.start()
        pieces = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert pair.cloud.process.poll() is None, pair.cloud.log_tail()
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == undisturbed
    assert segments(next(piece for piece in pieces if piece.get("edgewise"))) == [("cloud", 0)]


def test_a_picture_comes_from_the_cloud_and_from_here_where_the_link_is_lost(hasty: Pair) -> None:
    url = f"{hasty.device.url}/v1/images/generations"
    body = {"model": "pictures", "prompt": "a red cat", "seed": 5}
    there = httpx.post(url, json=body, timeout=120)
    assert there.status_code == 200, there.text
    receipt = there.json()["edgewise"]
    (stage,) = receipt["stages"]
    assert [(one["where"], one["offset"]) for one in stage["segments"]] == [(stage["where"], 0)] == [("cloud", 0)]
    assert stage["numeric_class"]
    assert receipt["costs"]["down_bytes"] > 500

    hasty.link.act_after(1, "cut", text=EVENT)
    here = httpx.post(url, json=body, timeout=120)
    assert here.status_code == 200, here.text
    receipt = here.json()["edgewise"]
    (stage,) = receipt["stages"]
    assert ([one["where"] for one in stage["segments"]], stage["where"]) == (["local"], "local")
    assert receipt["plan"]["stages"][0]["where"] == "cloud"
    assert receipt["costs"]["up_bytes"] > 100
    assert "link_lost" in stage["why"]
    stored = httpx.get(f"{hasty.device.url}/edgewise/v1/receipts?where=local&limit=1", timeout=60).json()["data"]
    assert [one["id"] for one in stored] == [receipt["request_id"]]
    assert here.json()["data"] == there.json()["data"]
    hasty.link.restore()


def test_a_model_that_only_the_cloud_has_is_listed_and_asked_and_offline_it_says_why_not(hasty: Pair) -> None:
    url = f"{hasty.device.url}/v1/chat/completions"
    body = {"model": "large", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1}
    cards = {card["id"]: card for card in httpx.get(f"{hasty.device.url}/v1/models", timeout=30).json()["data"]}
    assert (cards["tiny"]["edgewise"]["where"], cards["large"]["edgewise"]["where"]) == ("local", "cloud")

    answer = httpx.post(url, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["edgewise"]["stages"][0]["where"] == "cloud"
    assert answer.json()["usage"]["completion_tokens"] == 8
    private = httpx.post(url, json=body, headers={"x-edgewise-privacy": "private"}, timeout=60)
    assert (private.status_code, private.json()["error"]["code"]) == (503, "no_place")

    long = "hello " * 60  # more than the device's 64 tokens
    assert segments(hasty.complete(long, max_tokens=4)) == [("cloud", 0)]
    refused = httpx.post(
        f"{hasty.device.url}/v1/completions",
        json=hasty.body(long, max_tokens=4),
        headers={"x-edgewise-privacy": "private"},
        timeout=60,
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")

    painter = {"model": "painter", "prompt": "a red cat", "seed": 5}
    assert cards["painter"]["edgewise"]["where"] == "cloud"
    drawn = httpx.post(f"{hasty.device.url}/v1/images/generations", json=painter, timeout=120)
    assert (drawn.status_code, drawn.json()["edgewise"]["stages"][0]["where"]) == (200, "cloud"), drawn.text

    hasty.link.cut()
    hasty.wait_link(up=False)
    offline = httpx.post(url, json=body, timeout=60)
    assert (offline.status_code, offline.json()["error"]["code"]) == (503, "no_place")
    assert "not on this device" in offline.json()["error"]["message"]
    hasty.link.restore()


def test_a_cloud_that_is_killed_for_good_is_followed_by_the_local_engine(hasty: Pair) -> None:
    undisturbed = text(hasty.complete())
    hold = hasty.link.act_after(9, "hold", text=TOKEN)
    with httpx.stream(
        "POST", f"{hasty.device.url}/v1/completions", json=hasty.body(stream=True), timeout=120
    ) as response:
        assert hold.wait(60)
        for process in (hasty.cloud.pid, *(child.pid for child in hasty.cloud.children())):
            os.kill(process, signal.SIGKILL)
        hasty.link.cut()  # what is on its way is lost: it may be the whole answer
        hasty.link.restore()
        body = "\n".join(response.iter_lines())
    assert '"reads":"localfrom' in body.replace(" ", "")
    hasty.wait_link(up=False)
    answer = hasty.complete()
    assert answer["edgewise"]["stages"][0]["where"] == "local"
    assert text(answer) == undisturbed


@pytest.mark.parametrize("make", [iotcore_broker, mosquitto_broker])
def test_over_a_broker_a_link_that_breaks_changes_nothing_either(make: Brokers) -> None:
    """In mid-answer, however its tokens come together: before 2500 bytes it has begun, and its tokens alone take more."""
    long: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}
    unreachable: dict[str, Any] = (
        {"CLOUD__TRANSPORT": "auto", "CLOUD__URL": "http://127.0.0.1:9"} if make is iotcore_broker else {}
    )
    with make() as broker, paired(broker=broker, CLOUD__PATIENCE_S="20", **unreachable) as pair:
        private = text(pair.complete(headers={"x-edgewise-privacy": "private"}, **long))
        answer = pair.complete(**long)
        assert (text(answer), segments(answer)) == (private, [("cloud", 0)])
        assert answer["edgewise"]["costs"]["down_bytes"] > 1000
        reset = pair.link.act_after(2500, "reset")
        answer = pair.complete(**long)
        assert reset.is_set()
        assert (text(answer), segments(answer)) == (private, [("cloud", 0)])
