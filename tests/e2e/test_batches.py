"""Batches on a real service: through the openai client, and over kill -9."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from openai import OpenAI

from scripts.service import DeviceService
from tests.e2e.service import import_tiny, new_home, running

LINES = 24
KILLS = 2


def request_file(count: int, *, tokens: int) -> bytes:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "tiny",
                "prompt": f"number {number}",
                "max_tokens": tokens,
                "seed": number,
                "ignore_eos": True,
            },
        }
        for number in range(count)
    ]
    return "\n".join(json.dumps(line) for line in lines).encode()


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        time.sleep(0.05)


def connect(service: DeviceService) -> OpenAI:
    return OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def completed(ai: OpenAI, batch_id: str) -> int:
    counts = ai.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return int(counts.completed)


def more_than(ai: OpenAI, batch_id: str, count: int) -> bool:
    return completed(ai, batch_id) > count


def answers(ai: OpenAI, file_id: str | None) -> dict[str, str]:
    """Text by custom_id; every id once."""
    assert file_id is not None
    results = [json.loads(line) for line in ai.files.content(file_id).text.splitlines()]
    found = {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in results}
    assert len(found) == len(results)
    return found


def kill(service: DeviceService) -> None:
    """The service and its engine at once, as a power cut would."""
    family = service.children()
    service.process.kill()
    for process in family:
        process.kill()
    service.process.wait(60)


def test_every_line_is_done_exactly_once_over_kills() -> None:
    with new_home(starter=False) as home:
        import_tiny(home)
        with running(model="tiny", home=home) as service, connect(service) as ai:
            file = ai.files.create(file=("in.jsonl", request_file(LINES, tokens=40)), purpose="batch")
            batch = ai.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
            until(lambda: completed(ai, batch.id) >= 3)
            before = completed(ai, batch.id)
            kill(service)
        for _ in range(KILLS - 1):
            with running(model="tiny", home=home) as service, connect(service) as ai:
                assert completed(ai, batch.id) >= before  # nothing that was told is lost
                before = completed(ai, batch.id)
                until(partial(more_than, ai, batch.id, min(before, LINES - 1)))
                before = completed(ai, batch.id)
                kill(service)
        assert check(home / "state.db") == "ok"
        with running(model="tiny", home=home) as service, connect(service) as ai:
            until(lambda: ai.batches.retrieve(batch.id).status == "completed")
            done = ai.batches.retrieve(batch.id)
            texts = answers(ai, done.output_file_id)
            assert texts.keys() == {f"line-{number}" for number in range(LINES)}
            assert done.error_file_id is None
            assert done.usage is not None
            assert done.usage.output_tokens == LINES * 40
            direct = ai.completions.create(
                model="tiny", prompt="number 7", max_tokens=40, seed=7, extra_body={"ignore_eos": True}
            )
            assert texts["line-7"] == direct.choices[0].text


def check(database: Path) -> str:
    connection = sqlite3.connect(database)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()
