"""kill -9 of the engine in mid-stream: the client's stream goes on as if nothing had happened, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import psutil

from scripts.service import DeviceService, is_engine
from scripts.sse import Answer
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.client import Client
from tests.e2e.service import STARTER, TOKEN_BY_TOKEN, running

TOKENS = 96
TOKENS_IN_BRIEF = 32  # for fewer than five kills
PROMPT = "Tell me a long story about a lighthouse keeper and the sea."
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "top_p": 0.95, "seed": 77},
}


def fields(way: str, tokens: int) -> dict[str, Any]:
    return {**WAYS[way], "max_completion_tokens": tokens, "ignore_eos": True, "return_token_ids": True}


def streamed_with_kill(
    client: Client, service: DeviceService, wanted: dict[str, Any], offset: int
) -> tuple[Answer, int]:
    """A stream whose engine is killed once `offset` tokens have come; returns it with the pid that was killed."""
    answer, killed = Answer(), 0
    with client.stream_events(PROMPT, **wanted) as events:
        for event in events:
            answer.add(event)
            if not killed and len(answer.token_ids) >= offset:
                killed = service.engine_pid()
                os.kill(killed, signal.SIGKILL)
    return answer, killed


def wait_ready(service: DeviceService, limit_s: float = 60) -> None:
    limit = time.monotonic() + limit_s
    while not service.ready() and time.monotonic() < limit:
        time.sleep(0.05)


def orphans(service: DeviceService, killed: list[int]) -> list[int]:
    """Killed engines that are still there, and engines besides the one in use."""
    engine = service.engine_pid()
    surplus = [child.pid for child in service.children() if is_engine(child) and child.pid != engine]
    return [pid for pid in killed if psutil.pid_exists(pid)] + surplus


def measure(count: int) -> Verdict:
    """`count` kills for each way of sampling, at offsets drawn with a fixed seed."""
    rng, tokens = random.Random(4), TOKENS if count >= 5 else TOKENS_IN_BRIEF
    differing: list[dict[str, Any]] = []
    killed: list[int] = []
    with (
        running("--dtype", "float32", "--kv-dtype", "float32", environment=TOKEN_BY_TOKEN) as service,
        Client(service.url, model=STARTER) as client,
    ):
        for way in WAYS:
            wanted = fields(way, tokens)
            undisturbed = client.stream(PROMPT, **wanted)
            for trial in range(count):
                offset = rng.randrange(1, tokens)
                answer, pid = streamed_with_kill(client, service, wanted, offset)
                killed.append(pid)
                same = answer.text == undisturbed.text and answer.token_ids == undisturbed.token_ids
                if not same or not pid:
                    differing.append({"way": way, "offset": offset, "text": answer.text, "expected": undisturbed.text})
                progress(
                    f"{way} {trial + 1}/{count}: killed {pid} at offset {offset}: {'equal' if same else 'DIFFERENT'}"
                )
                wait_ready(service)
        left = orphans(service, killed)
    total = count * len(WAYS)
    figure = f"{total - len(differing)} of {total} streams byte-equal (greedy and seeded), {len(left)} orphans"
    return Verdict(figure=figure, passed=not differing and not left, details={"differing": differing, "orphans": left})


LINE = Line(
    number=4,
    title="kill -9 of the engine at random offsets: streams byte-equal to an undisturbed run; no orphan process",
    bar="all byte-equal, 0 orphans",
    count=10,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_4")
