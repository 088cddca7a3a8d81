"""A real cloud engine whose parts are killed in the middle of streams: the same tokens, each job billed once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.service import CloudService, edgewise_command, edgewise_environment
from tests.e2e.service import edgewise, import_tiny, new_home, suite_limits

TOKENS = 150
LEASE_S = 3
JOBS = "/edgewise/v1/jobs"


class Consumer:
    """What a device does: reads a stream, and after a lost link goes on where it was."""

    def __init__(self, service: CloudService, key: str) -> None:
        self.service = service
        self.key = key
        self.place = "0.0"
        self.tokens: list[int] = []
        self.final: dict[str, Any] | None = None
        self.id = ""

    def submit(self) -> None:
        self.id = httpx.post(self.service.url + JOBS, json=self.body(), timeout=30).raise_for_status().json()["id"]

    def body(self) -> dict[str, Any]:
        sampling = {"max_tokens": TOKENS, "temperature": 0.8, "seed": 7}
        return {
            "key": self.key,
            "device": "d",
            "work": {"kind": "generate", "model": "tiny", "prompt": [5, 6, 7], "sampling": sampling},
        }

    def read(self, until: int | None = None) -> None:
        """Up to the final record, to so many tokens, or to the end of the link."""
        url = f"{self.service.url}{JOBS}/{self.id}/stream?from={self.place}"
        try:
            with httpx.stream("GET", url, timeout=20) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    data = line.removeprefix("data: ")
                    if data == line:
                        continue
                    if self.take(json.loads(data)) or (until is not None and len(self.tokens) >= until):
                        return
        except httpx.TransportError:
            return

    def take(self, event: dict[str, Any]) -> bool:
        """Whether it was the last."""
        if event["type"] == "final":
            self.final = event
            return True
        assert event["offset"] == len(self.tokens), "the stream has a gap, or repeats itself"
        self.tokens += event["tokens"]
        self.place = f"{event['attempt']}.{len(self.tokens)}"
        return False

    def finish(self) -> None:
        """Read to the end, as often as that takes."""
        limit = time.monotonic() + 90
        while self.final is None:
            assert time.monotonic() < limit, self.service.log_tail()
            self.read()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home(starter=False) as made:
        import_tiny(made)
        yield made


@pytest.fixture(scope="module")
def service(home: Path) -> Iterator[CloudService]:
    environment = suite_limits() | {"EDGEWISE_INTAKE__LEASE_S": str(LEASE_S)}
    with CloudService(home, ["--model", "tiny"], environment=environment) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(service: CloudService) -> list[int]:
    consumer = Consumer(service, "undisturbed")
    consumer.submit()
    consumer.finish()
    assert len(consumer.tokens) == TOKENS
    return consumer.tokens


def billed(home: Path) -> dict[str, int]:
    """Jobs and tokens of all tenants."""
    bills = json.loads(edgewise(home, "cloud", "usage", "--json"))
    return {name: sum(bill[name] for bill in bills) for name in ("jobs", "prompt_tokens", "completion_tokens")}


@pytest.mark.parametrize("what", ["engine-engine", "service-stop"])
def test_streams_go_on_over_deaths(home: Path, service: CloudService, undisturbed: list[int], what: str) -> None:
    before = billed(home)
    consumer = Consumer(service, what)
    consumer.submit()
    offsets = sorted(random.Random(what).sample(range(5, TOKENS - 20), 2))
    for offset, victim in zip(offsets, what.split("-"), strict=True):
        consumer.read(until=offset)
        assert consumer.final is None
        if victim == "engine":
            os.kill(service.engine_pid(), signal.SIGKILL)
            continue
        if victim == "service":
            service.kill()
        else:
            assert service.stop() == 0
        service.start()
        service.wait_ready()
    consumer.finish()
    assert consumer.final is not None
    assert consumer.tokens == undisturbed
    assert (consumer.final["state"], consumer.final["count"]) == ("succeeded", TOKENS)
    after = billed(home)
    assert {name: after[name] - before[name] for name in after} == {
        "jobs": 1,
        "prompt_tokens": 3,
        "completion_tokens": TOKENS,
    }


def test_a_service_that_stood_still_for_longer_than_its_leases(
    home: Path, service: CloudService, undisturbed: list[int]
) -> None:
    before = billed(home)
    consumer = Consumer(service, "stopped")
    consumer.submit()
    consumer.read(until=20)
    os.kill(service.pid, signal.SIGSTOP)
    try:
        time.sleep(LEASE_S + 1)
    finally:
        os.kill(service.pid, signal.SIGCONT)
    consumer.finish()
    assert consumer.tokens == undisturbed
    after = billed(home)
    assert (after["jobs"] - before["jobs"], after["completion_tokens"] - before["completion_tokens"]) == (1, TOKENS)


def test_what_was_logged_whole_is_not_made_again(service: CloudService, undisturbed: list[int]) -> None:
    """As after a death between the last chunk and the final record."""
    consumer = Consumer(service, "whole")
    body = consumer.body()
    body["work"]["output"] = undisturbed
    id = httpx.post(service.url + JOBS, json=body, timeout=30).raise_for_status().json()["id"]
    events = httpx.get(f"{service.url}{JOBS}/{id}/stream", timeout=30).text
    final = json.loads(events.strip().rsplit("data: ", 1)[1])
    assert (final["state"], final["finish"], final["count"]) == ("succeeded", "length", TOKENS)
    assert final["usage"]["completion_tokens"] == 0


def test_a_repeat_after_a_death_is_the_same_job(service: CloudService, undisturbed: list[int]) -> None:
    consumer = Consumer(service, "repeated")
    consumer.submit()
    id = consumer.id
    service.kill()
    service.start()
    service.wait_ready()
    consumer.submit()
    consumer.finish()
    assert (consumer.id, consumer.tokens) == (id, undisturbed)
    control = {"key": consumer.key, "op": "ack", "after": consumer.place, "done": True}
    httpx.post(f"{service.url}{JOBS}/{id}/ack", json=control, timeout=30).raise_for_status()
    assert httpx.get(f"{service.url}{JOBS}/{id}/stream", timeout=30).status_code == 410


def test_commands_show_jobs_and_keys(home: Path, service: CloudService, undisturbed: list[int]) -> None:
    assert undisturbed
    key = edgewise(home, "cloud", "keys", "new", "shop-floor").strip().splitlines()[-1]
    headers = {"authorization": f"Bearer {key}"}
    info = httpx.get(f"{service.url}/edgewise/v1/cloud", headers=headers, timeout=30).json()
    assert (info["tenant"], info["models"][0]["model"]) == ("shop-floor", "tiny")
    rows = json.loads(edgewise(home, "cloud", "jobs", "--json"))
    assert {row["tenant"] for row in rows} == {"(anonymous)"}
    assert "undisturbed" in {row["key"] for row in rows}
    assert "succeeded" in edgewise(home, "cloud", "jobs")
    assert "(anonymous)" in edgewise(home, "cloud", "usage")
    edgewise(home, "cloud", "keys", "revoke", "shop-floor")
    assert httpx.get(f"{service.url}/edgewise/v1/cloud", headers=headers, timeout=30).status_code == 401


def test_a_second_engine_is_refused_the_state_directory(home: Path, service: CloudService) -> None:
    command = edgewise_command("cloud", "--port", "0", "--model", "tiny")
    second = subprocess.run(
        command, env=edgewise_environment(home), capture_output=True, text=True, timeout=60, check=False
    )
    assert (second.returncode, service.ready()) == (3, True)
    assert "another cloud engine" in second.stderr
