"""The supervised process in good days: serving, refusing, cancelling, draining."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgewise.core.errors import (
    BadModelFile,
    DeadlineExceeded,
    EdgewiseError,
    EngineUnavailable,
    InvalidRequest,
    QueueFull,
    ShuttingDown,
)
from edgewise.engine.client import EngineClient
from edgewise.engine.events import EngineEvent
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.timings import Timings

StartEngine = Callable[..., Awaitable[EngineClient]]


def ask(name: str, max_tokens: int = 20, *, prompt: tuple[int, ...] = (1, 2, 3), salt: str = "") -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=hash(name) % 2**32)
    return GenerateRequest(id=name, prompt=prompt, sampling=sampling, salt=salt)


async def read(engine: EngineClient, request: GenerateRequest) -> list[TokenChunk]:
    stream = await engine.submit(request)
    return [chunk async for chunk in stream]


def tokens(chunks: list[TokenChunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.tokens)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await asyncio.sleep(0.01)


def process_exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def shared_memory() -> list[Path]:
    return sorted(Path("/dev/shm").iterdir())


async def idle(engine: EngineClient) -> None:
    """Wait until the engine works on nothing."""

    async def empty() -> bool:
        return (await engine.stats()).running == 0

    await until(empty)


async def test_a_stream_is_what_the_core_generates(start_engine: StartEngine, fake: ModuleType) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    sampling = SamplingParams(max_tokens=30, seed=5, top_logprobs=0)
    request = GenerateRequest(id="a", prompt=(1, 2), sampling=sampling)
    chunks = await read(engine, request)
    assert tokens(chunks) == fake.expected(request)[0]
    assert [entry.token for chunk in chunks for entry in chunk.logprobs or ()] == list(tokens(chunks))
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["length"]
    assert chunks[-1].stats is not None
    assert (chunks[-1].stats.completion_tokens, chunks[-1].stats.restarts) == (30, 0)
    assert [event.kind for event in events] == ["starting", "progress", "progress", "ready"]
    assert [event.fraction for event in events if event.kind == "progress"] == [0.0, 1.0]
    assert engine.info is not None
    assert engine.info.pid == engine.pid == events[-1].pid
    assert engine.open_requests == 0
    await engine.stop()
    assert engine.state == events[-1].kind == "stopped"
    assert engine.pid is None


async def test_many_streams_do_not_mix(start_engine: StartEngine, fake: ModuleType) -> None:
    engine = await start_engine()
    requests = [ask(f"r{number}", 10 + number, prompt=(number,)) for number in range(32)]
    answers = await asyncio.gather(*(read(engine, request) for request in requests))
    assert [tokens(answer) for answer in answers] == [fake.expected(request)[0] for request in requests]


async def test_half_a_million_prompt_tokens_cross_through_shared_memory(
    start_engine: StartEngine, fake: ModuleType, descriptors: Callable[[], int]
) -> None:
    engine = await start_engine()
    before, shared = descriptors(), shared_memory()
    for number in range(3):
        request = ask(f"r{number}", 2, prompt=tuple(range(number, 500_000 + number)))
        assert tokens(await read(engine, request)) == fake.expected(request)[0]
    assert descriptors() == before
    assert shared_memory() == shared


async def test_refusals_are_raised_as_themselves(start_engine: StartEngine, fake: ModuleType) -> None:
    engine = await start_engine()
    for code in ("rate_limit_exceeded", "context_length_exceeded", "insufficient_memory", "invalid_value"):
        with pytest.raises(EdgewiseError) as refusal:
            await engine.submit(ask("a", salt=fake.Programme(refuse=code).salt()))
        assert (refusal.value.code, refusal.value.param) == (code, "fake")
    with pytest.raises(InvalidRequest, match="no token id"):
        await engine.submit(ask("a", prompt=(-1,)))
    assert engine.open_requests == 0
    assert tokens(await read(engine, ask("a"))) == fake.expected(ask("a"))[0]


async def test_the_engines_queue_limit_is_a_refusal(start_engine: StartEngine) -> None:
    engine = await start_engine(max_running=2, max_waiting=1, settings={"step_s": 0.02})
    streams = [await engine.submit(ask(f"r{number}", 10_000)) for number in range(3)]
    with pytest.raises(QueueFull) as refusal:
        await engine.submit(ask("r4"))
    assert refusal.value.retry_after_s == 0.1
    for stream in streams:
        await stream.aclose()
    assert len(await read(engine, ask("r5", 3))) == 3


@pytest.mark.parametrize("how", ["close", "task", "drop"])
async def test_a_consumer_that_leaves_frees_the_engine(start_engine: StartEngine, how: str) -> None:
    engine = await start_engine(settings={"step_s": 0.001})
    stream = await engine.submit(ask("a", 10**9))
    assert (await stream.__anext__()).offset == 0
    if how == "close":
        await stream.aclose()
    elif how == "task":

        async def exhaust() -> None:
            async for _ in stream:
                pass

        reader = asyncio.create_task(exhaust())
        await asyncio.sleep(0.05)
        reader.cancel()
        await asyncio.wait({reader})
    else:
        del stream
        gc.collect()
    await idle(engine)
    assert (await engine.stats()).aborted == 1
    assert engine.open_requests == 0


async def test_an_id_may_be_used_again_after_a_cancel_at_once(start_engine: StartEngine, fake: ModuleType) -> None:
    engine = await start_engine(settings={"step_s": 0.02})
    for _ in range(3):
        stream = await engine.submit(ask("same", 10**9))
        await stream.aclose()
    assert tokens(await read(engine, ask("same", 5))) == fake.expected(ask("same", 5))[0]


async def test_a_cancelled_submission_leaves_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"step_s": 0.2})
    blocker = await engine.submit(ask("blocker", 10**9))
    waiting = asyncio.create_task(engine.submit(ask("b", 10**9)))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await blocker.aclose()
    await idle(engine)
    assert engine.open_requests == 0


async def test_a_thousand_random_aborts_leak_nothing(start_engine: StartEngine, descriptors: Callable[[], int]) -> None:
    engine = await start_engine(max_running=64, max_waiting=1000)
    chance = random.Random(1)
    await read(engine, ask("warm"))
    before = (descriptors(), len(asyncio.all_tasks()), (await engine.memory()).booked["descriptors"])

    async def abort(number: int) -> None:
        prompt = tuple(range(chance.choice([1, 100, 20_000])))
        task = asyncio.create_task(read(engine, ask(f"r{number}", 10**9, prompt=prompt)))
        await asyncio.sleep(chance.choice([0.0, 0.001, 0.02, 0.05]))
        task.cancel()
        await asyncio.wait({task})

    for group in range(20):
        await asyncio.gather(*(abort(50 * group + number) for number in range(50)))
    await idle(engine)
    assert engine.open_requests == 0
    assert "open=0, held=0" in repr(engine)
    assert (descriptors(), len(asyncio.all_tasks()), (await engine.memory()).booked["descriptors"]) == before
    assert engine._open == {}


async def test_statistics_are_bounded_and_say_their_age(start_engine: StartEngine, quick: Timings) -> None:
    engine = await start_engine(settings={"step_s": 0.4}, timings=replace(quick, answer_s=0.01))
    assert engine.stats_age_s is None
    assert (await engine.stats()).running == 0
    while engine.stats_age_s is None:
        await engine.stats()
    stream = await engine.submit(ask("a", 10**9))
    stale = await engine.stats()
    assert stale.running == 0
    assert engine.stats_age_s > 0.0
    assert stale.rss_bytes > 0

    async def told() -> bool:
        return (await engine.stats()).running == 1

    await until(told)  # the answer comes after the step, and is kept
    await stream.aclose()
    await engine.stop()
    assert (await engine.stats()).running == 1
    assert (await engine.memory()).booked == {}


async def test_a_deadline_that_passes_while_loading_is_the_callers_error(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"load_s": 20}, wait=False)
    with pytest.raises(DeadlineExceeded):
        await engine.submit(replace(ask("a"), deadline_s=0.05))
    assert engine.state == "starting"


async def test_a_submission_waits_for_the_engine_to_load_but_not_for_ever(
    start_engine: StartEngine, quick: Timings
) -> None:
    engine = await start_engine(settings={"load_s": 0.5}, wait=False)
    assert len(await read(engine, ask("a", 3))) == 3
    slow = await start_engine(settings={"load_s": 20}, wait=False, timings=replace(quick, patience_s=0.05))
    with pytest.raises(EngineUnavailable) as refusal:
        await slow.submit(ask("a"))
    assert refusal.value.retry_after_s is not None
    with pytest.raises(EngineUnavailable):
        await slow.wait_ready(0.05)
    assert slow.open_requests == 0


async def test_nobody_waits_for_an_engine_that_has_been_stopped(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"load_s": 20}, wait=False)
    waiting = asyncio.create_task(engine.wait_ready())
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(waiting, 60)


async def test_submissions_that_wait_for_the_engine_are_limited(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"load_s": 1.0}, wait=False, max_running=2, max_waiting=1)
    early = [asyncio.create_task(read(engine, ask(f"r{number}", 2))) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await engine.submit(ask("late"))
    assert [len(answer) for answer in await asyncio.gather(*early)] == [2, 2, 2]


async def test_a_bad_model_fails_at_once_with_its_own_error_and_is_tried_again(
    start_engine: StartEngine, tmp_path: Path, quick: Timings
) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(settings={"load_error": "bad_model_file"}, wait=False, events=events)
    with pytest.raises(BadModelFile, match="the fake core says"):
        await engine.wait_ready(30.0)
    assert engine.state == "failed"
    with pytest.raises(EngineUnavailable, match="the fake core says") as refusal:
        await engine.submit(ask("a"))
    assert refusal.value.retry_after_s is not None
    assert [event.kind for event in events if event.kind != "progress"] == ["starting", "crashed", "failed"]
    (tmp_path / "fake.json").write_text("{}")
    await until(lambda: engine.state == "ready")
    assert len(await read(engine, ask("a", 3))) == 3


async def test_draining_lets_open_requests_end_and_refuses_new_ones(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"step_s": 0.005})
    stream = await engine.submit(ask("a", 50))
    stopping = asyncio.create_task(engine.stop(30.0))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await engine.submit(ask("b"))
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].finish == "length"
    await stopping
    assert engine.state == "stopped"


async def test_what_outlasts_the_drain_ends_with_an_error(start_engine: StartEngine) -> None:
    engine = await start_engine(settings={"step_s": 0.005})
    stream = await engine.submit(ask("a", 10**9))
    await engine.stop(0.1)
    chunks = [chunk async for chunk in stream]
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "shutting_down")


async def test_stopping_in_a_long_step_kills(start_engine: StartEngine, quick: Timings) -> None:
    engine = await start_engine(settings={"step_s": 60.0}, timings=replace(quick, grace_s=0.1))
    pid = engine.pid
    stream = await engine.submit(ask("a"))
    await engine.stop(0.1)
    assert not process_exists(pid)
    assert [chunk.error_code async for chunk in stream] == ["shutting_down"]


async def test_a_client_may_be_started_again_after_a_stop(start_engine: StartEngine) -> None:
    engine = await start_engine()
    with pytest.raises(RuntimeError):
        await engine.start()
    await engine.stop()
    await engine.stop()
    await engine.start()
    await engine.wait_ready(30.0)
    assert len(await read(engine, ask("a", 3))) == 3


async def test_before_the_start_everything_is_unavailable(fake: ModuleType) -> None:
    engine = EngineClient(fake.fake_config())
    assert engine.state == "stopped"
    assert engine.info is None
    with pytest.raises(EngineUnavailable):
        await engine.submit(ask("a"))
    with pytest.raises(EngineUnavailable):
        await engine.wait_ready(1.0)
    assert (await engine.stats()).running == 0
    await engine.stop()


async def test_an_event_callback_that_fails_does_no_harm(fake: ModuleType, quick: Timings) -> None:
    def fail(event: EngineEvent) -> None:
        raise ValueError(event.kind)

    factory = f"{fake.__spec__.origin}:build" if fake.__spec__ else ""
    engine = EngineClient(fake.fake_config(), factory=factory, timings=quick, on_event=fail)
    await engine.start()
    await engine.wait_ready(30.0)
    await engine.stop()


@pytest.mark.parametrize(
    "factory", ["no_such_module:build", "edgewise.engine.core:nothing", "nonsense", "/no/file.py:build"]
)  # fmt: skip
async def test_a_factory_that_does_not_exist_is_a_configuration_error(
    fake: ModuleType, quick: Timings, factory: str
) -> None:
    engine = EngineClient(fake.fake_config(), factory=factory, timings=quick)
    await engine.start()
    with pytest.raises(EdgewiseError) as refusal:
        await engine.wait_ready(30.0)
    assert refusal.value.code == "bad_configuration"
    await engine.stop()


async def test_thread_settings_are_there_before_the_factory_runs(start_engine: StartEngine) -> None:
    engine = await start_engine(threads=3)
    assert engine.info is not None
    assert engine.info.device == "omp=3 torch=False"


def test_the_service_side_does_not_import_torch() -> None:
    code = "import json, sys, edgewise.engine.client, edgewise.engine.worker; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    modules: list[Any] = json.loads(done.stdout)
    assert "edgewise.engine.client" in modules
    assert {"torch", "numpy", "fastapi", "transformers"}.isdisjoint(modules)


async def test_tokens_of_quick_steps_come_together(start_engine: StartEngine) -> None:
    # Shorter than the time between heartbeats, with which what waits goes too.
    engine = await start_engine(stream_interval_s=0.02, settings={"step_s": 0.001})
    alone = await start_engine(settings={"step_s": 0.001})
    chunks = await read(engine, ask("a", 200))
    assert tokens(chunks) == tokens(await read(alone, ask("a", 200)))
    assert chunks[0].tokens == tokens(chunks)[:1]
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len(chunks) < 150  # however busy the machine, some steps end within the interval
    assert sum(len(chunk.gaps) for chunk in chunks) == 199
    whole = await read(engine, replace(ask("b", 200), whole=True))
    assert tokens(whole) == tokens(await read(alone, ask("b", 200)))
    assert len(whole) < len(chunks)
