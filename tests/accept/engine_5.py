"""Preemption storm: mixed requests on a cache of 64 pages; every answer is its undisturbed one, realtime is served at once.

What is compared: the time to first token of realtime requests that arrive one at a time, at random moments (also in the middle of
a step, whose rest counts), (a) on the engine when it is idle, (b) on the same engine in the middle of a storm of interactive,
background and bulk requests that wants several times the pages and the places there are. Same shape of prompt, no prompt twice,
so that no cache helps. Blocks of (a) and (b) take turns in one run.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams, TokenChunk
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files, make_tiny_model
from tests.accept.line import Line, Verdict, main, progress

PAGES = 64
BLOCK = 50  # requests of one storm
REALTIME = 10  # of them
PROMPT = 192  # tokens of a realtime prompt
STEP_S = 0.008
BAR = 2.0
OTHERS = (Priority.INTERACTIVE, Priority.BACKGROUND, Priority.BULK, Priority.BULK)


@dataclass
class Asked:
    """A request on its way: when it arrived, when its first token came, and what came."""

    request: GenerateRequest
    arrived: float
    ttft: float | None = None
    tokens: list[int] = field(default_factory=list)
    done: bool = False


class Stage:
    """The engine's loop as the engine process turns it: what has arrived is taken between two steps."""

    def __init__(self, core: Engine) -> None:
        self.core = core
        self.asked: dict[str, Asked] = {}
        self._coming: list[Asked] = []

    def arrive(self, request: GenerateRequest, at: float) -> Asked:
        """Let a request arrive at a moment, now or to come."""
        self._coming.append(Asked(request, at))
        return self._coming[-1]

    def turn(self) -> None:
        now = time.perf_counter()
        for one in [one for one in self._coming if one.arrived <= now]:
            self._coming.remove(one)
            self.asked[one.request.id] = one
            self.core.add(one.request)
        if not self.core.has_work:
            time.sleep(0.0002)
            return
        for chunk in self.core.step():
            self._deliver(self.asked[chunk.request_id], chunk)

    def until(self, one: Asked) -> None:
        while not one.done:
            self.turn()

    def drain(self) -> None:
        while self._coming or self.core.has_work:
            self.turn()

    def _deliver(self, one: Asked, chunk: TokenChunk) -> None:
        if one.ttft is None and chunk.tokens:
            one.ttft = time.perf_counter() - one.arrived
        one.tokens += chunk.tokens
        one.done = chunk.finish is not None
        if chunk.finish == "error":
            raise RuntimeError(f"{chunk.request_id}: {chunk.error_message}")


class Requests:
    """Random requests; no prompt is like another."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._rng = random.Random(5)
        self._made = 0

    def make(self, priority: Priority, prompt: int, max_tokens: int) -> GenerateRequest:
        self._made += 1
        return GenerateRequest(
            id=f"{priority.label}-{self._made}",
            prompt=tuple(self._rng.randrange(self._vocab) for _ in range(prompt)),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0 if self._made % 2 else 0.9, seed=self._made),
            key=f"key-{self._made % 3}",
            priority=priority,
        )

    def realtime(self) -> GenerateRequest:
        return self.make(Priority.REALTIME, PROMPT, 8)

    def other(self) -> GenerateRequest:
        priority = OTHERS[self._made % len(OTHERS)]
        return self.make(priority, self._rng.randrange(16, 320), self._rng.randrange(40, 160))

    def pause(self, longest: float) -> float:
        return self._rng.uniform(0.0, longest)


def model(count: int) -> dict[str, int]:
    """Its size: where too few requests are sent for times to mean anything, only answers count, and a small one gives them."""
    return {"hidden": 64, "layers": 2} if count < BLOCK else {"hidden": 256, "layers": 4}


def engine(files: ModelFiles) -> Engine:
    """An engine whose cache has `PAGES` pages."""
    config = EngineConfig(
        model=files, device="cpu", threads=1, dtype="float32", kv_dtype="int8", max_running=16, prefill_step_s=STEP_S
    )
    probe = build(replace(config, kv_memory_bytes=2**23), lambda phase, done: None)
    page_bytes = probe.memory().booked["kv_cache"] // probe.info.num_pages
    probe.close()
    return build(replace(config, kv_memory_bytes=PAGES * page_bytes), lambda phase, done: None)


def idle_block(stage: Stage, requests: Requests, count: int) -> list[float]:
    """Times to first token on the idle engine."""
    times = []
    for _ in range(count):
        one = stage.arrive(requests.realtime(), time.perf_counter() + requests.pause(0.01))
        stage.until(one)
        assert one.ttft is not None
        times.append(one.ttft)
    return times


def storm_block(stage: Stage, requests: Requests, size: int) -> tuple[list[float], int]:
    """Times to first token in a storm, and how many realtime requests found it blowing (others running and waiting)."""
    realtime = max(1, size * REALTIME // BLOCK)
    for _ in range(size - realtime):
        stage.arrive(requests.other(), time.perf_counter())
    times, found = [], 0
    for _ in range(realtime):
        at = time.perf_counter() + requests.pause(0.1)
        one = stage.arrive(requests.realtime(), at)
        while time.perf_counter() < at:
            stage.turn()
        stats = stage.core.stats()
        found += stats.running > 1 and stats.waiting > 0
        stage.until(one)
        assert one.ttft is not None
        times.append(one.ttft)
    stage.drain()
    return times, found


def undisturbed(core: Engine, asked: Iterator[Asked]) -> list[str]:
    """Ids of requests whose answer, made alone on an empty cache, is another one."""
    wrong = []
    for one in asked:
        core._scheduler.pages.drop_cached()
        stage = Stage(core)
        alone = stage.arrive(replace(one.request, id="alone"), time.perf_counter())
        stage.until(alone)
        wrong += [one.request.id] if alone.tokens != one.tokens else []
    return wrong


def p95(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]


def measure(count: int) -> Verdict:
    """A storm of `count` requests in blocks."""
    with tempfile.TemporaryDirectory() as folder:
        files = local_files(make_tiny_model(Path(folder), **model(count), context=1024))
        core = engine(files)
        assert core.info.num_pages == PAGES
        requests, stage = Requests(core.info.vocab_size), Stage(core)
        idle_block(stage, requests, 5)  # warm up
        idle: list[float] = []
        storm: list[float] = []
        blowing = left = 0
        for first in range(0, count, BLOCK):
            size = min(BLOCK, count - first)
            idle += idle_block(stage, requests, REALTIME)
            times, found = storm_block(stage, requests, size)
            storm += times
            blowing += found
            left += size
            progress(f"{left} of {count} requests, {core.stats().preemptions} preemptions")
        stats, spilled = core.stats(), core._scheduler.pages.spill.stats()
        wrong = undisturbed(core, iter(stage.asked.values()))
        core.close()
    ratio = p95(storm) / p95(idle)
    left_over = (
        stats.running or stats.waiting or stats.pages_free + stats.pages_cached != PAGES or spilled.reserved_bytes
    )
    correct = not wrong and not left_over and stats.preemptions > 0
    figure = (
        f"{len(stage.asked)} answers, {len(wrong)} differ; realtime p95 TTFT {p95(storm) * 1e3:.1f} ms in the storm, "
        f"{p95(idle) * 1e3:.1f} ms idle: {ratio:.2f}x; {stats.preemptions} preemptions, {spilled.exported} pages spilled"
    )
    return Verdict(
        figure=figure,
        passed=correct and ratio <= BAR and blowing >= 0.9 * len(storm),
        correct=correct,
        details={
            "wrong": wrong,
            "idle_ms": [round(t * 1e3, 2) for t in sorted(idle)],
            "storm_ms": [round(t * 1e3, 2) for t in sorted(storm)],
            "found_the_storm_blowing": f"{blowing} of {len(storm)}",
            "restored_pages": spilled.restored,
        },
    )


LINE = Line(
    number=5,
    title="Preemption storm (requests of mixed classes on a cache of 64 pages): every answer is its undisturbed one, and "
    "realtime requests get their first token about as soon as on an idle engine",
    bar=f"0 differ; realtime p95 TTFT <= {BAR}x idle",
    count=200,
    small=20,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.engine_5")
