"""`make bench SERVICE=1`: speed of the device service with the starter model, through its REST API; writes bench-service.json.

Start to ready, time to first token, prefill and decode rate of one stream, decode rate of eight streams together. Each figure
is the median of the repetitions, measured after a warm-up, on whatever else the machine is doing: the load is written down too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.service import DeviceService
from tests.e2e.client import Client
from tests.e2e.service import STARTER, running

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "bench-service.json"
DECODE_TOKENS = 96
LONG_WORDS = 1800
STREAMS = 8


def timed_stream(client: Client, prompt: str, tokens: int) -> dict[str, float]:
    """Seconds to the first and to the last token of one streamed answer, and the counts of tokens."""
    fields = {"temperature": 0, "max_completion_tokens": tokens, "ignore_eos": True}
    began = time.perf_counter()
    first = 0.0
    usage: dict[str, int] = {}
    with client.stream_events(prompt, stream_options={"include_usage": True}, **fields) as events:
        for event in events:
            if not first and any(choice["delta"].get("content") for choice in event["choices"]):
                first = time.perf_counter() - began
            usage = event.get("usage") or usage
    return {
        "first_s": first,
        "total_s": time.perf_counter() - began,
        "prompt_tokens": usage["prompt_tokens"],
        "tokens": usage["completion_tokens"],
    }


def decode_rate(run: dict[str, float]) -> float:
    return (run["tokens"] - 1) / (run["total_s"] - run["first_s"])


def one_stream(client: Client, number: int) -> dict[str, float]:
    run = timed_stream(client, f"({number}) Tell me about the sea.", DECODE_TOKENS)
    return {"first_token_s": run["first_s"], "decode_tokens_per_s": decode_rate(run)}


def long_prompt(client: Client, number: int) -> dict[str, float]:
    """A prompt that no earlier one shares a beginning with, so nothing of it is cached."""
    run = timed_stream(client, f"{number} " + "the tide comes in and goes out " * (LONG_WORDS // 7), 2)
    return {"prefill_tokens_per_s": run["prompt_tokens"] / run["first_s"], "prompt_tokens": run["prompt_tokens"]}


def many_streams(client: Client, number: int) -> dict[str, float]:
    """Tokens of all streams by the wall clock from the first request to the last token."""
    began = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as pool:
        runs = list(
            pool.map(
                lambda i: timed_stream(client, f"({number}/{i}) Tell me about the sea.", DECODE_TOKENS), range(STREAMS)
            )
        )
    return {"streams_8_tokens_per_s": sum(run["tokens"] for run in runs) / (time.perf_counter() - began)}


def measure(client: Client, repeat: int) -> dict[str, float]:
    """Medians over the repetitions."""
    one_stream(client, -1)
    found: dict[str, list[float]] = {}
    for part in (one_stream, long_prompt, many_streams):
        for number in range(repeat):
            for name, value in part(client, number).items():
                found.setdefault(name, []).append(value)
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def started(service: DeviceService, began: float) -> dict[str, Any]:
    with Client(service.url, model=STARTER) as client:
        receipt = client.chat("Hello", max_completion_tokens=1)["edgewise"]
    return {
        "start_to_ready_s": round(time.perf_counter() - began, 3),
        "numeric_class": receipt["stages"][0]["numeric_class"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench SERVICE=1", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    args, serve_flags = parser.parse_known_args()
    load = os.getloadavg()[0]
    began = time.perf_counter()
    with running(*serve_flags) as service:
        facts = started(service, began)
        with Client(service.url, model=STARTER) as client:
            figures = measure(client, args.repeat)
    machine = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load_before": round(load, 2)}
    report = {"time": time.strftime("%FT%TZ", time.gmtime()), **machine, "repeat": args.repeat, **facts, **figures}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    table = Table("figure", "value", title="Device service, starter model")
    for name, value in report.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(f"bench: written to {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
