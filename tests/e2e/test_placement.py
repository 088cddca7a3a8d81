"""Placement on a real device with a real cloud: explained plans, stored receipts, and a budget that a restart does not forget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.pair import Pair, paired
from tests.e2e.service import edgewise, running

BYTES = 60_000


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired(PLACEMENT__DAILY_BYTES=str(BYTES)) as made:
        yield made


def test_a_plan_shows_both_places_with_their_numbers_and_runs_nothing(pair: Pair, tmp_path: Path) -> None:
    local = {"x-edgewise-policy": "prefer-local"}
    here, there = pair.complete(headers=local), pair.complete()
    assert [one["edgewise"]["stages"][0]["where"] for one in (here, there)] == ["local", "cloud"]
    task = tmp_path / "task.json"
    task.write_text(json.dumps(pair.body()))
    before = len(httpx.get(f"{pair.device.url}/edgewise/v1/receipts", timeout=30).json()["data"])
    told = json.loads(edgewise(pair.device_home, "plan", "--task", str(task), "--url", pair.device.url, "--json"))
    (stage,) = told["stages"]
    assert (told["policy"], stage["where"]) == ("prefer-cloud", "cloud")
    for place in stage["candidates"]:
        assert place["allowed"]
        assert place["predicted"]["total_ms"] > place["predicted"]["first_ms"] > 0
    table = edgewise(pair.device_home, "plan", "--task", str(task), "--explain", "--url", pair.device.url)
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["local", "cloud"]
    private = edgewise(
        pair.device_home, "plan", "--task", str(task), "--privacy", "private", "--url", pair.device.url, "--json"
    )
    assert json.loads(private)["stages"][0]["where"] == "local"
    assert len(httpx.get(f"{pair.device.url}/edgewise/v1/receipts", timeout=30).json()["data"]) == before


def test_a_plan_of_a_pipeline_shows_both_places_of_every_stage(pair: Pair, tmp_path: Path) -> None:
    task = tmp_path / "pipeline.json"
    inputs = {"topic": "rain", "draft_model": "tiny", "rewrite_model": "tiny"}
    task.write_text(json.dumps({"pipeline": "draft-and-rewrite", "input": inputs}))
    table = edgewise(pair.device_home, "plan", "--task", str(task), "--explain", "--url", pair.device.url)
    places = [tuple(line.split()[:2]) for line in table.splitlines()[1:]]
    assert places == [(name, where) for name in ("draft", "rewrite") for where in ("local", "cloud")]


def spend(url: str, pair: Pair) -> str:
    """Ask until nothing goes to the cloud any more because of the budget; why."""
    for _ in range(100):
        answer = httpx.post(f"{url}/v1/completions", json=pair.body(), timeout=120).json()
        (stage,) = answer["edgewise"]["plan"]["stages"]
        if stage["where"] == "local" and "has not been asked" not in stage["why"]:
            return str(stage["why"])
    raise AssertionError("a hundred requests are within the budget")


def spent(url: str) -> int:
    found = httpx.get(f"{url}/edgewise/v1/receipts?where=cloud&limit=1000", timeout=30).json()["data"]
    return sum(one["bytes"] for one in found)


def test_a_budget_ends_spending_and_a_restart_forgets_none_of_it(pair: Pair) -> None:
    assert "daily_bytes" in spend(pair.device.url, pair)
    before = spent(pair.device.url)
    assert before > 0.5 * BYTES
    pair.device.kill()
    with running(model="tiny", home=pair.device_home, environment=pair.settings) as again:
        assert "daily_bytes" in spend(again.url, pair)
        assert (
            before <= spent(again.url) < 1.4 * BYTES
        )  # the last one of each life may take more than was expected of it
