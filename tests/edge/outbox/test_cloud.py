"""Deferred work for a real cloud over a link that is down: a model that only the cloud has, and a stage of a pipeline."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.e2e.pair import Pair, paired
from tests.e2e.service import import_tiny

JOBS = "/edgewise/v1/jobs"
SENTENCES, TOKENS = 300, 100
CHAIN = """
name = "both"
[inputs.topic]

[[stages]]
name = "draft"
kind = "generate"
model = "tiny"
where = ["cloud"]
input = { prompt = "${topic}" }
options = { max_tokens = 12, ignore_eos = true }

[[stages]]
name = "rewrite"
kind = "generate"
model = "tiny"
where = ["local"]
input = { prompt = "again: ${draft}" }
options = { max_tokens = 8, ignore_eos = true }
"""


def leave(pair: Pair, url: str, body: dict[str, Any]) -> str:
    told = httpx.post(f"{pair.device.url}{JOBS}", json={"url": url, "body": body}, timeout=60)
    assert told.status_code == 202, told.text
    return str(told.json()["id"])


def show(pair: Pair, id: str) -> dict[str, Any]:
    job: dict[str, Any] = httpx.get(f"{pair.device.url}{JOBS}/{id}", timeout=60).json()
    return job


def until(pair: Pair, id: str, condition: Callable[[dict[str, Any]], bool], seconds: float = 90.0) -> dict[str, Any]:
    limit = time.monotonic() + seconds
    while not condition(job := show(pair, id)):
        assert time.monotonic() < limit, job
        time.sleep(0.05)
    return job


def places(receipt: dict[str, Any]) -> list[str]:
    return [stage["where"] for stage in receipt["stages"]]


def generated(pair: Pair) -> float:
    """Tokens that the cloud's engine has made."""
    text = httpx.get(f"{pair.cloud.url}/metrics", timeout=60).text
    found = re.search(r'^edgewise_engine_generated_tokens_total\{model="tiny"\} (\S+)$', text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def leave_in_the_middle(pair: Pair) -> None:
    """A client of a pipeline that leaves while its first stage runs on the cloud, which makes no more for it."""
    topic = " ".join(f"Sentence {number}." for number in range(SENTENCES))
    body = {"input": {"topic": topic}, "stream": True}
    before = generated(pair)
    with httpx.stream("POST", f"{pair.device.url}/edgewise/v1/pipelines/long", json=body, timeout=60) as told:
        first = next(line for line in told.iter_lines() if line.startswith("data:"))
        assert json.loads(first[5:])["stage"] == "draft"
    limit, last = time.monotonic() + 120, -1.0
    while last != (last := generated(pair)):
        assert time.monotonic() < limit, "the cloud goes on for a client that has left"
        time.sleep(1)
    assert 0 < last - before < SENTENCES * TOKENS / 2
    while httpx.get(f"{pair.device.url}/edgewise/v1/requests", timeout=60).json()["in_flight"]:
        assert time.monotonic() < limit, "the device holds a request whose client has left"
        time.sleep(0.1)


def test_a_pipeline_across_the_link_and_what_only_the_cloud_can_do_waits_for_it() -> None:
    with paired(CLOUD__PATIENCE_S="2") as pair:
        import_tiny(pair.cloud.home, "theirs", seed=7)
        (pair.device_home / "pipelines").mkdir()
        (pair.device_home / "pipelines" / "both.toml").write_text(CHAIN)
        long = CHAIN.replace('"both"', '"long"').replace("max_tokens = 12", f"max_tokens = {TOKENS}")
        long = long.replace(
            'input = { prompt = "${topic}" }', 'input = { prompt = "${part}" }\nover = "topic"\neach = "sentence"'
        )
        (pair.device_home / "pipelines" / "long.toml").write_text(long)
        leave_in_the_middle(pair)
        pair.link.cut()
        alone = leave(pair, "/v1/completions", {"model": "theirs", "prompt": "hi", "max_tokens": 8})
        chain = leave(pair, "/edgewise/v1/pipelines/both", {"input": {"topic": "cats"}})
        for id in (alone, chain):
            until(pair, id, lambda job: job["waiting"] is not None or job["response"] is not None)
        time.sleep(2)
        assert {show(pair, id)["state"] for id in (alone, chain)} <= {"queued", "running"}
        pair.link.restore()
        job = until(pair, alone, lambda job: job["response"] is not None)
        assert job["state"] == "succeeded", json.dumps(job)
        assert places(job["receipt"]) == ["cloud"]
        job = until(pair, chain, lambda job: job["response"] is not None)
        assert job["state"] == "succeeded", json.dumps(job)
        assert [places(stage["parts"][0]) for stage in job["receipt"]["stages"]] == [["cloud"], ["local"]]
