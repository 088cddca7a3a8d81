"""The http executor over another appliance: a real `edgewise serve` on a tiny model, behind a link that breaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from edgewise.bench.link import Link
from edgewise.cloud.executors.http import HttpExecutor
from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.core.errors import ContextLengthExceeded, LinkLost, ModelNotFound
from edgewise.wire.messages import GenerateWork
from scripts.service import CloudService, DeviceService
from tests.e2e.service import import_tiny, new_home, running
from tests.fakes.misbehaving_upstream import misbehaving_upstream

PROMPT = "<|user|>\nTell me of the sea.\n"


@pytest.fixture(scope="module")
def served() -> Iterator[DeviceService]:
    with new_home(starter=False) as home:
        import_tiny(home)
        one_by_one = {"EDGEWISE_ENGINE__STREAM_INTERVAL_S": "0"}  # a link is broken between two tokens
        with running(model="tiny", home=home, environment=one_by_one) as service:
            yield service


def order(**sampling: Any) -> Order:
    fields = {"max_tokens": 40, "temperature": 0.9, "seed": 2**63 + 5, "stop_token_ids": []} | sampling
    return Order(job="j", attempt=1, work=GenerateWork(model="tiny", text=PROMPT, sampling=fields))


def asked_directly(service: DeviceService, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "top_p": 1.0}
    answer = httpx.post(f"{service.url}/v1/completions", json=body | {"seed": 2**63 + 5} | fields, timeout=60)
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()
    return told


async def read(executor: HttpExecutor, asked: Order) -> list[Produced]:
    return [produced async for produced in executor.run(asked)]


async def until_broken(executor: HttpExecutor, asked: Order) -> str | None:
    """What comes until the link is lost; None if the answer ended before."""
    text = ""
    try:
        async for one in executor.run(asked):
            text += one.text or ""
    except LinkLost:
        return text
    return None


async def broken_off(executor: HttpExecutor, asked: Order, link: Link) -> str:
    """What came of an answer that the link broke in its middle; where a busy server sends it in few events, the next one's."""
    fired = None
    for _ in range(20):
        if fired is None or fired.is_set():
            fired = link.act_after(4, "reset", text=b"data: ")
        text = await until_broken(executor, asked)
        if text:
            assert fired.is_set()
            return text
    raise AssertionError("no answer of 20 was broken in its middle")


async def test_it_brings_what_the_server_says_with_its_digest_and_counts(served: DeviceService) -> None:
    executor = HttpExecutor(f"{served.url}/v1")
    executor.start()
    try:
        (capability,) = await executor.capabilities()
        produced = await read(executor, order())
        with pytest.raises(ModelNotFound):
            await read(executor, replace(order(), work=GenerateWork(model="absent", text="x")))
        with pytest.raises(ContextLengthExceeded):
            await read(executor, order(max_tokens=10_000))
    finally:
        await executor.stop()
    direct = asked_directly(served)
    assert "".join(one.text or "" for one in produced) == direct["choices"][0]["text"]
    assert produced[-1].finish == direct["choices"][0]["finish_reason"] == "length"
    facts = produced[-1].facts
    assert facts is not None
    assert facts["prompt_tokens"] == direct["usage"]["prompt_tokens"]
    assert facts["completion_tokens"] == 40
    assert facts["upstream"]["not_honoured"] == {}
    assert capability.digest is not None
    assert capability.context == 512


async def test_after_a_broken_link_the_next_attempt_goes_on_behind_the_text(served: DeviceService) -> None:
    """Two attempts at one job, as a worker makes them: nothing is said twice, and the limit holds over both."""
    parts = urlsplit(served.url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Link(parts.hostname, parts.port) as link:
        executor = HttpExecutor(f"{link.url}/v1")
        executor.start()
        try:
            await executor.capabilities()
            text = await broken_off(executor, order(), link)
            produced = await read(executor, replace(order(), attempt=2, text=text))
        finally:
            await executor.stop()
        assert link.saw(json.dumps(PROMPT + text, ensure_ascii=False).encode(), "up")
    facts = produced[-1].facts
    assert facts is not None
    assert facts["completion_tokens"] == 40
    assert facts["upstream"]["resumed_at"] == len(text)
    assert produced[-1].finish == "length"


async def test_a_device_is_told_what_a_foreign_server_was_not_asked_for() -> None:
    """Device and cloud as two processes; the cloud has no model of its own and needs none."""
    async with misbehaving_upstream() as upstream:
        receipt = await asyncio.to_thread(receipt_through_a_cloud, upstream.url)
    (stops,) = receipt["warnings"]
    assert "'stop_token_ids': the server's model is not known to be the same" in stops


def receipt_through_a_cloud(upstream: str) -> dict[str, Any]:
    """The receipt of the first answer that comes from the cloud, which the device must have found first."""
    body = {"model": "m", "prompt": "hello", "max_tokens": 4}
    with ExitStack() as stack:
        cloud_home, device_home = (stack.enter_context(new_home(starter=False)) for _ in range(2))
        import_tiny(device_home, "m")
        cloud = stack.enter_context(CloudService(cloud_home, ["--executor", "http", "--upstream", upstream]))
        settings = {"EDGEWISE_CLOUD__URL": cloud.url, "EDGEWISE_PLACEMENT__POLICY": "prefer-cloud"}
        device = stack.enter_context(running(model="m", home=device_home, environment=settings))
        limit = time.monotonic() + 120
        while True:
            answer = httpx.post(f"{device.url}/v1/completions", json=body, timeout=60)
            answer.raise_for_status()
            receipt: dict[str, Any] = answer.json()["edgewise"]
            if receipt["stages"][0]["where"] == "cloud":
                assert cloud.children() == []  # no engine
                with_logprobs = httpx.post(f"{device.url}/v1/completions", json={**body, "logprobs": 1}, timeout=60)
                assert with_logprobs.json()["edgewise"]["stages"][0]["where"] == "local", with_logprobs.text
                return receipt
            assert time.monotonic() < limit, receipt
            time.sleep(0.1)
