"""Deferred jobs on a real device service that is killed: every one is answered, and delivered once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from scripts.service import DeviceService
from tests.e2e.service import import_tiny, new_home, running
from tests.edge.outbox.receiver import receiving

JOBS, KILLS = 8, 2


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        time.sleep(0.05)


def kill(service: DeviceService) -> None:
    """The service and its engine at once, as a power cut would."""
    family = service.children()
    service.process.kill()
    for process in family:
        process.kill()
    service.process.wait(60)


def job(number: int, url: str) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": f"number {number}", "max_tokens": 48, "temperature": 1, "ignore_eos": True}
    return {"url": "/v1/completions", "body": asked, "deliver": url, "key": f"job-{number}"}


def test_over_kills_every_job_is_answered_and_delivered_once() -> None:
    environment = {"EDGEWISE_OUTBOX__WEBHOOK_HOSTS": "http://127.0.0.1", "EDGEWISE_OUTBOX__CONCURRENCY": "1"}
    ids: dict[str, str] = {}
    with receiving() as receiver, new_home(starter=False) as home:
        import_tiny(home)
        for _ in range(KILLS):
            with running(model="tiny", home=home, environment=environment) as service:
                for number in range(JOBS):
                    told = httpx.post(f"{service.url}/edgewise/v1/jobs", json=job(number, receiver.url), timeout=60)
                    assert told.status_code in (200, 202), told.text
                    assert ids.setdefault(f"job-{number}", told.json()["id"]) == told.json()["id"]
                wanted = min(len(receiver.acknowledged) + 2, JOBS)  # many were done while the last were left
                until(lambda wanted=wanted: len(receiver.acknowledged) >= wanted)  # type: ignore[misc]
                kill(service)
        with running(model="tiny", home=home, environment=environment) as service:
            until(lambda: len(receiver.acknowledged) == JOBS)
            listed = httpx.get(f"{service.url}/edgewise/v1/jobs", timeout=60).json()["data"]
            until(lambda: delivered(service) == JOBS)
    assert {one["id"] for one in listed} == set(ids.values())
    assert len({(delivery.id, delivery.body) for delivery in receiver.got}) == JOBS
    assert len(receiver.got) <= JOBS + KILLS
    for delivery in receiver.acknowledged:
        data = delivery.event["data"]
        assert (data["state"], data["response"]["body"]["usage"]["completion_tokens"]) == ("succeeded", 48)


def delivered(service: DeviceService) -> int:
    listed = httpx.get(f"{service.url}/edgewise/v1/jobs", timeout=60).json()["data"]
    return sum(one["delivery"]["state"] == "delivered" for one in listed)
