"""Two replicas of the real engine as Ray actors, one killed while many streams run: nothing lost, nothing billed twice, small.

Real processes: an `edgewise cloud --executor ray` with its Ray, and a device's transport that streams the jobs. What each stream
must be is computed by an engine alone in this process. Memory is the sum of the resident sets of the cloud service and of every
process below it, which counts shared pages once for each process: more than they really take.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil

from edgewise.edge.offload.http import HttpTransport
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.store import Store
from edgewise.wire.messages import Chunk, Final, GenerateWork, JobRequest
from edgewise.wire.stream_log import START, StreamHash
from scripts.service import CloudService
from tests.accept.line import Line, Verdict, main, progress
from tests.e2e.service import edgewise, import_tiny

TOKENS = 300
LIMIT_BYTES = 2_500_000_000
REPLICA = "ray::Replica"  # Ray names its processes by the class of their actor
SETTINGS = {"EDGEWISE_ENGINE__THREADS": "1", "EDGEWISE_INTAKE__REPLICAS": "2", "EDGEWISE_ENGINE__DEVICE": "cpu"}


@dataclass
class Stream:
    """One job and what came of it."""

    request: GenerateRequest
    tokens: list[int] = field(default_factory=list)
    final: Final | None = None

    @property
    def attempts(self) -> int:
        return 0 if self.final is None else self.final.attempt


class Memory(threading.Thread):
    """The largest sum of resident sets of a process and all below it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._root = psutil.Process(pid)
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.2):
            self.peak = max(self.peak, sum(_rss(one) for one in [self._root, *self._root.children(recursive=True)]))

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.peak


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def make_streams(count: int, vocab: int) -> list[Stream]:
    """Half of them greedy, half drawn; no two alike."""
    return [
        Stream(
            GenerateRequest(
                id=f"job-{number}",
                prompt=tuple((7 * number + place) % (vocab - 4) + 4 for place in range(20)),
                sampling=SamplingParams(max_tokens=TOKENS, temperature=0.9 * (number % 2), seed=number),
            )
        )
        for number in range(count)
    ]


def alone(core: Engine, request: GenerateRequest) -> list[int]:
    """What one engine makes of a request with nothing else to do."""
    core.add(request)
    tokens: list[int] = []
    while core.has_work:
        for chunk in core.step():
            tokens += chunk.tokens
    return tokens


async def receive(transport: HttpTransport, model: str, stream: Stream) -> None:
    """Submit the job and read it to its end, as a device does."""
    asked = stream.request
    work = GenerateWork(model=model, prompt=asked.prompt, sampling=asdict(asked.sampling))
    await transport.submit(JobRequest(key=asked.id, device="acceptance", work=work))
    async for event in transport.events(asked.id, START):
        if isinstance(event, Chunk):
            if event.offset != len(stream.tokens):
                raise RuntimeError(f"{asked.id}: a chunk at {event.offset} after {len(stream.tokens)} tokens")
            stream.tokens += event.tokens or ()
        else:
            stream.final = event


def replicas(cloud: CloudService) -> list[psutil.Process]:
    """The actors that have an engine."""
    found = []
    for child in cloud.children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE and child.name().startswith(REPLICA) and child.children():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


async def until_both_answer(cloud: CloudService) -> None:
    """Return once two replicas can be asked, as the service counts them."""
    async with httpx.AsyncClient(base_url=cloud.url, trust_env=False) as client:
        for _ in range(1200):
            if "\nedgewise_cloud_replicas 2.0" in (await client.get("/metrics")).text:
                return
            await asyncio.sleep(0.1)
    raise RuntimeError("there are no two replicas after two minutes")


async def storm(cloud: CloudService, model: str, streams: list[Stream]) -> None:
    """All streams at once; in their midst one replica is killed."""
    transport = HttpTransport(cloud.url)
    try:
        await receive(
            transport, model, Stream(GenerateRequest(id="warm", prompt=(5,), sampling=SamplingParams(max_tokens=1)))
        )
        await until_both_answer(cloud)
        victim, _ = replicas(cloud)
        running = [asyncio.create_task(receive(transport, model, stream)) for stream in streams]
        while min(len(stream.tokens) for stream in streams) < 10:
            if failed := [task for task in running if task.done() and task.exception()]:
                await failed[0]
            await asyncio.sleep(0.005)
        progress(f"killing the replica {victim.pid} with {sum(not task.done() for task in running)} streams open")
        os.kill(victim.pid, signal.SIGKILL)
        await asyncio.gather(*running)
        await until_both_answer(cloud)  # the dead one has been replaced
    finally:
        await transport.close()


@contextmanager
def cloud_with_ray(home: Path, model: str) -> Iterator[CloudService]:
    with CloudService(home, ["--model", model, "--executor", "ray"], environment=SETTINGS) as cloud:
        yield cloud


def wrong(stream: Stream, expected: list[int]) -> str | None:
    """Why a stream is not what it must be."""
    final = stream.final
    if final is None or final.state != "succeeded":
        return f"ended as {None if final is None else (final.state, final.error_message)}"
    sha = StreamHash()
    sha.tokens(stream.tokens)
    if stream.tokens != expected:
        pairs = enumerate(zip(stream.tokens, expected, strict=False))
        return f"differs at token {next((place for place, (one, other) in pairs if one != other), 'of its end')}"
    if (final.count, final.usage.completion_tokens, final.sha256) != (TOKENS, TOKENS, sha.hexdigest()):
        return f"is accounted for as {final.count} items, {final.usage.completion_tokens} billed"
    return None


def measure(count: int) -> Verdict:
    """`count` streams at once."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        model = import_tiny(home, context=1024, hidden=128)
        files = Store(home / "models").resolve(model)
        config = EngineConfig(model=files, device="cpu", threads=1, kv_memory_bytes=2**25)
        core = build(config, lambda phase, done: None)
        streams = make_streams(count, core.info.vocab_size)
        expected = [alone(core, stream.request) for stream in streams]
        core.close()
        with cloud_with_ray(home, model) as cloud:
            memory = Memory(cloud.pid)
            memory.start()
            asyncio.run(storm(cloud, model, streams))
            peak = memory.stop()
            bills = json.loads(edgewise(home, "cloud", "usage", "--json"))
    faults = {s.request.id: why for s, tokens in zip(streams, expected, strict=True) if (why := wrong(s, tokens))}
    again = sum(stream.attempts > 1 for stream in streams)
    billed = sum(bill["jobs"] for bill in bills), sum(bill["completion_tokens"] for bill in bills)
    due = count + 1, count * TOKENS + 1  # with the one that warmed up
    passed = not faults and again > 0 and billed == due and peak <= LIMIT_BYTES
    figure = (
        f"{count - len(faults)} of {count} streams right, {again} went on on another replica, {billed[1]} of {due[1]} tokens "
        f"billed, {peak / 1e9:.2f} GB at most"
    )
    return Verdict(figure=figure, passed=passed, details={"faults": faults, "billed": billed, "due": due})


LINE = Line(
    number=5,
    title="Ray: two replicas of the real engine, one killed with SIGKILL while many streams run",
    bar="every stream that of an undisturbed engine, billed once, at most 2.5 GB",
    count=48,
    small=12,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_5")
