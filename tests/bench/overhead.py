"""What a token costs beside the network: microseconds of CPU a token, by part, of the engine process and of the service process.

    python -m tests.bench.overhead [--tokens 400] [--interval 0.04] [--json]

The network is a double with constant logits (`tests.bench.overhead_double`), everything else is real: the engine's parts are
measured in this process, the service in its own, asked over HTTP for greedy streams. CPU times, so other work on the machine
matters less than to a clock on the wall, though it too empties the caches; the medians of several rounds. How many tokens come
in one event depends on how quick a step is, so on a busy machine `OVERHEAD_WEIGHTS_MIB=8` comes nearer to a step of an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from edgewise.bench.request import Sample, Target, ask
from edgewise.bench.work import Work
from edgewise.cli.output import print_table
from edgewise.engine import runner
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.outbox import Outbox
from edgewise.engine.pacing import Pacer
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.transport import FrameWriter
from edgewise.models.tiny import local_files, make_tiny_model
from tests.bench.overhead_double import build
from tests.bench.overhead_parts import Parts, process_cpu_s
from tests.bench.overhead_service import REPORT
from tests.e2e.service import import_tiny, new_home, running

STREAMS = (1, 8)
PROMPT = 128
CONTEXT = 4096
EVENTS = "events a token"
Costs = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overhead")
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", type=float, default=0.04, help="engine.stream_interval_s")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = {f"{streams} streams": costs(streams, args.tokens, args.rounds, args.interval) for streams in STREAMS}
    if args.json:
        print(json.dumps(report, indent=2))
        return
    for place in ("engine", "service"):
        parts = list(dict.fromkeys(part for found in report.values() for part in found[place]))
        rows = [
            (part, *(f"{found[place].get(part, 0.0):.{2 if part == EVENTS else 1}f}" for found in report.values()))
            for part in parts
        ]
        print_table((f"{place} process, us of CPU a token", *report), rows)


def costs(streams: int, tokens: int, rounds: int, interval_s: float) -> dict[str, Costs]:
    """Microseconds a token, by process and part."""
    return {
        "engine": medians([engine_costs(streams, tokens, interval_s) for _ in range(rounds)]),
        "service": service_costs(streams, tokens, rounds, interval_s),
    }


def medians(found: list[Costs]) -> Costs:
    by_part = defaultdict(list)
    for one in found:
        for part, value in one.items():
            by_part[part].append(value)
    return {part: statistics.median(values) for part, values in by_part.items()}


# --- the engine process, in this one ---


def engine_costs(streams: int, tokens: int, interval_s: float) -> Costs:
    with tempfile.TemporaryDirectory(prefix="edgewise-") as folder, socket_pair() as (ours, theirs):
        model = local_files(make_tiny_model(Path(folder) / "model", context=CONTEXT))
        core = build(EngineConfig(model=model, threads=1, kv_memory_bytes=64 << 20), lambda *_: None)
        parts = Parts()
        outbox = Outbox(FrameWriter(ours), interval_s=interval_s)
        wrap_engine(core, outbox, parts)
        for index in range(streams):
            core.add(request(index, tokens))
        while any(one.remaining > 1 or not one.generated for one in core._live.values()):
            core.step()
        parts.spent.clear()
        made, began = 0, time.thread_time_ns()
        while core.has_work:
            chunks = core.step()
            outbox.put_chunks(chunks, more=core.has_work)
            with contextlib.suppress(BlockingIOError):  # nothing was sent after this step
                theirs.recv(1 << 20)
            made += sum(len(chunk.tokens) for chunk in chunks)
        total = time.thread_time_ns() - began
        parts.unwrap()
        core.close()
    parts.spent["network (the double)"] += 0
    rest = total - sum(parts.spent.values())
    return {part: spent / made / 1e3 for part, spent in (*parts.spent.items(), ("rest, with the timers", rest))}


def wrap_engine(core: Engine, outbox: Outbox, parts: Parts) -> None:
    inner = core._runner
    parts.wrap(core._scheduler, "schedule", "schedule")
    parts.wrap(core._scheduler, "commit", "commit")
    parts.wrap(Pacer, "observe", "commit")
    parts.wrap(inner, "run", "runner, rest")
    parts.wrap(inner, "_tokens", "tensors")
    parts.wrap(inner, "_meta", "tensors")
    parts.wrap(inner._network, "forward", "network (the double)")
    parts.wrap(inner._network, "logits", "network (the double)")
    parts.wrap(runner, "draw", "drawing")
    parts.wrap(core, "_advance", "chunks")
    parts.wrap(core._tiers, "tick", "tiers")
    parts.wrap(outbox, "put_chunks", "outbox, socket")


def request(index: int, tokens: int) -> GenerateRequest:
    prompt = tuple((7 * index + place) % 200 + 10 for place in range(PROMPT))
    return GenerateRequest(id=f"r{index}", prompt=prompt, sampling=SamplingParams(max_tokens=tokens, temperature=0.0))


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


# --- the service process ---


def service_costs(streams: int, tokens: int, rounds: int, interval_s: float) -> Costs:
    """Of the whole process unwrapped, and of its parts, wrapped, in another one; the rest is the event loop and the server."""
    with new_home(starter=False) as home:
        model = import_tiny(home, context=CONTEXT)
        setting = {"EDGEWISE_ENGINE__STREAM_INTERVAL_S": str(interval_s)}
        total, client, events = served(home, model, streams, tokens, rounds, setting)
        report = home / "parts.json"
        served(home, model, streams, tokens, rounds, setting | {REPORT: str(report)})
        made = streams * tokens * (rounds + 1)  # with the warm-up
        parts = {part: spent / made / 1e3 for part, spent in json.loads(report.read_text()).items()}
    rest = total - sum(parts.values())
    return {**parts, "rest: tasks, server, socket": rest, "all": total, "the client that reads": client, EVENTS: events}


def served(
    home: Path, model: str, streams: int, tokens: int, rounds: int, environment: dict[str, str]
) -> tuple[float, float, float]:
    """Microseconds of the service's CPU a token, of its client's, and events a token."""
    environment = environment | {"EDGEWISE_ENGINE__THREADS": "1"}
    prefix = [sys.executable, "-m", "tests.bench.overhead_service"]
    with running(model=model, home=home, environment=environment, prefix=prefix) as service:
        target = Target(base_url=f"{service.url}/v1", model=model, fields={"temperature": 0, "ignore_eos": True})
        asyncio.run(stream(target, streams, tokens))
        spent, client, events = [], [], []
        made = streams * tokens
        for _ in range(rounds):
            before, ours = process_cpu_s(service.pid), time.process_time()
            events.append(asyncio.run(stream(target, streams, tokens)) / made)
            spent.append((process_cpu_s(service.pid) - before) / made * 1e6)
            client.append((time.process_time() - ours) / made * 1e6)
    return statistics.median(spent), statistics.median(client), statistics.median(events)


async def stream(target: Target, streams: int, tokens: int) -> int:
    """So many answers at once, read to their ends; the number of events with text."""
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        samples = [Sample(scheduled=time.perf_counter()) for _ in range(streams)]
        works = [Work(prompt=f"{index} tell me about the sea", answer_tokens=tokens) for index in range(streams)]
        await asyncio.gather(*(ask(client, target, *one) for one in zip(works, samples, strict=True)))
    for sample in samples:
        if (sample.error, sample.answer_tokens) != (None, tokens):
            raise RuntimeError(f"{sample.error}, {sample.answer_tokens} tokens instead of none and {tokens}")
    return sum(len(sample.arrivals) for sample in samples)


if __name__ == "__main__":
    main()
