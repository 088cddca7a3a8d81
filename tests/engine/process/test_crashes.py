"""The supervised process in bad days: killed, failing, hung, orphaned."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from edgewise.core.errors import EdgewiseError, EngineFault, EngineUnavailable
from edgewise.engine import transport
from edgewise.engine.client import EngineClient
from edgewise.engine.events import EngineEvent
from edgewise.engine.heartbeat import Limits
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.timings import Timings

StartEngine = Callable[..., Awaitable[EngineClient]]
CORE = Path(__file__).parents[2] / "fakes" / "core.py"


def ask(name: str, max_tokens: int = 20, *, salt: str = "", **sampling: object) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=len(name), **sampling)  # type: ignore[arg-type]
    return GenerateRequest(id=name, prompt=tuple(name.encode()), sampling=params, salt=salt)


async def read(engine: EngineClient, request: GenerateRequest) -> list[TokenChunk]:
    stream = await engine.submit(request)
    return [chunk async for chunk in stream]


def tokens(chunks: list[TokenChunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.tokens)


def assert_seamless(chunks: list[TokenChunk], request: GenerateRequest, fake: ModuleType) -> None:
    """Each token once, in order, with its log probability, and one proper end."""
    expected, finish = fake.expected(request)
    assert tokens(chunks) == expected
    assert [entry.token for chunk in chunks for entry in chunk.logprobs or ()] == list(expected)
    position = 0
    for chunk in chunks:
        assert chunk.offset == position
        position += len(chunk.tokens)
    assert [chunk.finish for chunk in chunks if chunk.finish] == [finish]
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.completion_tokens == len(expected)


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await asyncio.sleep(0.01)


def process_file(pid: int | str | None, name: str = "") -> Path:
    return Path(f"/proc/{pid}/{name}")


def exists(pid: int) -> bool:
    return process_file(pid).exists()


def oom_score(pid: int | str | None) -> int:
    return int(process_file(pid, "oom_score_adj").read_text())


def kinds(events: list[EngineEvent]) -> list[str]:
    return [event.kind for event in events if event.kind != "progress"]


async def test_kill_minus_nine_at_random_offsets_under_eight_streams(
    start_engine: StartEngine, fake: ModuleType, quick: Timings
) -> None:
    events: list[EngineEvent] = []
    # No request is to blame for these deaths: on a busy machine three lives in a row may be cut before a stream's next token.
    timings = replace(quick, strikes=1000)
    engine = await start_engine(events=events, timings=timings, settings={"step_s": 0.001})
    chance = random.Random(7)
    requests = [ask(f"{'x' * number}", 600 + number, top_logprobs=0) for number in range(1, 9)]
    streams = [asyncio.create_task(read(engine, request)) for request in requests]
    pids: list[int] = []
    while not all(stream.done() for stream in streams):
        await asyncio.sleep(chance.uniform(0.0, 0.25))
        pid = engine.pid
        if pid is not None and len(pids) < 20:
            pids.append(pid)
            os.kill(pid, signal.SIGKILL)
    for request, stream in zip(requests, streams, strict=True):
        chunks = await stream
        assert_seamless(chunks, request, fake)
        assert chunks[-1].stats is not None
        assert chunks[-1].stats.restarts >= 1
    crashes = [event for event in events if event.kind == "crashed"]
    assert len(crashes) >= 3
    assert {event.status for event in crashes} == {-signal.SIGKILL}
    assert not any(exists(pid) for pid in pids)


async def test_lives_that_are_cut_as_soon_as_they_are_ready_lose_nothing(
    start_engine: StartEngine, fake: ModuleType, quick: Timings
) -> None:
    """Death between a submission and its first chunk, again and again: nothing is lost, nothing comes twice."""
    events: list[EngineEvent] = []
    engine = await start_engine(events=events, timings=replace(quick, strikes=1000), settings={"step_s": 0.001})
    chance = random.Random(11)
    requests = [ask(f"{'x' * number}", 300 + number, top_logprobs=0) for number in range(1, 5)]
    streams = [asyncio.create_task(read(engine, request)) for request in requests]
    for life in range(1, 9):
        await until(lambda life=life: kinds(events).count("ready") == life)  # type: ignore[misc]
        await asyncio.sleep(chance.choice([0.0, 0.001, 0.003, 0.01]))
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
    for request, stream in zip(requests, streams, strict=True):
        assert_seamless(await stream, request, fake)


@pytest.mark.parametrize("offset", [0, 1, 9, 19])
async def test_a_crash_in_a_step_is_a_pause(
    start_engine: StartEngine, fake: ModuleType, tmp_path: Path, offset: int
) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    request = ask("a", salt=fake.Programme(crash_at=offset, once=str(tmp_path / "once")).salt(), top_logprobs=0)
    chunks = await read(engine, request)
    assert_seamless(chunks, request, fake)
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.restarts == 1
    assert kinds(events) == ["starting", "ready", "crashed", "restarting", "starting", "ready"]
    assert any("SIGKILL" in event.message for event in events if event.kind == "crashed")


async def test_an_exception_in_a_step_is_logged_with_its_traceback(
    start_engine: StartEngine, fake: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    request = ask("a", salt=fake.Programme(raise_at=3, once=str(tmp_path / "once")).salt(), top_logprobs=0)
    assert_seamless(await read(engine, request), request, fake)
    (crash,) = (event for event in events if event.kind == "crashed")
    assert crash.status == 70
    assert "the fake core fails at token 3" in crash.message
    (record,) = (record for record in caplog.records if record.getMessage() == "engine_crashed")
    assert "in _mishap" in str(vars(record))


async def test_a_hang_in_a_step_is_found_and_ended(
    start_engine: StartEngine, fake: ModuleType, tmp_path: Path, quick: Timings
) -> None:
    events: list[EngineEvent] = []
    limits = Limits(silence_s=60.0, step_s=2.0, load_silence_s=120.0, load_s=120.0)
    engine = await start_engine(events=events, timings=replace(quick, limits=limits))
    request = ask("a", salt=fake.Programme(hang_at=4, once=str(tmp_path / "once")).salt(), top_logprobs=0)
    assert_seamless(await read(engine, request), request, fake)
    (crash,) = (event for event in events if event.kind == "crashed")
    assert "one step has been running" in crash.message
    assert crash.status == -signal.SIGKILL


async def test_a_long_step_is_not_a_hang(start_engine: StartEngine, quick: Timings) -> None:
    events: list[EngineEvent] = []
    # A silence long enough that a busy machine does not make one, and a step that is longer.
    limits = Limits(silence_s=2.5, step_s=60.0, load_silence_s=120.0, load_s=120.0)
    engine = await start_engine(events=events, timings=replace(quick, limits=limits), settings={"step_s": 4.0})
    assert len(await read(engine, ask("a", 1))) == 1
    assert kinds(events) == ["starting", "ready"]


async def test_a_process_that_falls_silent_is_replaced(
    start_engine: StartEngine, fake: ModuleType, quick: Timings
) -> None:
    events: list[EngineEvent] = []
    limits = Limits(silence_s=2.0, step_s=60.0, load_silence_s=120.0, load_s=120.0)
    engine = await start_engine(events=events, timings=replace(quick, limits=limits), settings={"step_s": 0.01})
    request = ask("a", 40, top_logprobs=0)
    stream = await engine.submit(request)
    chunks = [await stream.__anext__()]
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    chunks += [chunk async for chunk in stream]
    assert_seamless(chunks, request, fake)
    assert any("no sign of life" in event.message for event in events if event.kind == "crashed")


async def test_a_poisonous_request_fails_and_the_others_survive(start_engine: StartEngine, fake: ModuleType) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    poison = ask("poison", salt=fake.Programme(crash_at=0).salt())
    innocents = [ask(f"{'x' * number}", 50, top_logprobs=0) for number in range(1, 5)]
    answers = [asyncio.create_task(read(engine, request)) for request in (innocents[0], poison, *innocents[1:])]
    done = await asyncio.gather(*answers, return_exceptions=True)
    victim = done.pop(1)
    if isinstance(victim, list):  # it had been accepted before it crashed the engine
        assert (victim[-1].finish, victim[-1].error_code) == ("error", "engine_error")
        assert tokens(victim) == ()
    else:
        assert isinstance(victim, EngineFault)
    for request, answer in zip(innocents, done, strict=True):
        assert isinstance(answer, list)
        assert_seamless(answer, request, fake)
    assert kinds(events).count("crashed") == 3
    assert engine.state == "ready"


async def test_poison_in_mid_stream_ends_with_an_error_after_what_was_delivered(
    start_engine: StartEngine, fake: ModuleType
) -> None:
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    request = ask("a", salt=fake.Programme(crash_at=5).salt())
    chunks = await read(engine, request)
    assert tokens(chunks) == fake.expected(request)[0][:5]
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "engine_error")
    assert chunks[-1].stats is not None
    assert (chunks[-1].stats.completion_tokens, chunks[-1].stats.restarts) == (5, 3)
    (failed,) = (event for event in events if event.kind == "request_failed")
    assert (failed.request_id, failed.code) == ("a", "engine_error")


async def test_a_gap_in_the_engines_chunks_is_an_error(start_engine: StartEngine, fake: ModuleType) -> None:
    engine = await start_engine()
    request = ask("a", salt=fake.Programme(skip_at=6).salt())
    chunks = await read(engine, request)
    assert tokens(chunks) == fake.expected(request)[0][:6]
    assert chunks[-1].error_code == "engine_error"


async def test_an_engine_that_cannot_start_fails_its_requests_and_comes_back(
    start_engine: StartEngine, tmp_path: Path, quick: Timings
) -> None:
    events: list[EngineEvent] = []
    rules = replace(quick.restart, give_up_after=3)
    engine = await start_engine(
        events=events, timings=replace(quick, restart=rules), settings={"load_crash": True}, wait=False
    )
    with pytest.raises(EngineUnavailable) as refusal:
        await engine.submit(ask("a"))
    assert refusal.value.retry_after_s is not None
    assert kinds(events) == ["starting", "crashed", "restarting"] * 2 + ["starting", "crashed", "failed"]
    with pytest.raises(EdgewiseError):
        await engine.wait_ready(5.0)
    (tmp_path / "fake.json").write_text("{}")
    await until(lambda: engine.state == "ready")
    assert len(await read(engine, ask("a", 2))) == 2


async def test_open_requests_end_when_the_engine_cannot_come_back(
    start_engine: StartEngine, tmp_path: Path, quick: Timings
) -> None:
    rules = replace(quick.restart, give_up_after=2)
    engine = await start_engine(timings=replace(quick, restart=rules), settings={"step_s": 0.01})
    stream = await engine.submit(ask("a", 10**9))
    await stream.__anext__()
    (tmp_path / "fake.json").write_text('{"load_crash": true}')
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    chunks = [chunk async for chunk in stream]
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "engine_unavailable")
    assert engine.open_requests == 0


async def test_crashes_leave_no_descriptor_and_no_task(
    start_engine: StartEngine, descriptors: Callable[[], int]
) -> None:
    engine = await start_engine()
    await read(engine, ask("warm"))
    before = (descriptors(), len(asyncio.all_tasks()))
    pids: list[int] = []
    for number in range(5):
        assert engine.pid is not None
        pids.append(engine.pid)
        os.kill(pids[-1], signal.SIGKILL)
        assert len(tokens(await read(engine, ask(f"r{number}", 3)))) == 3
        await until(lambda: engine.state == "ready" and engine.pid != pids[-1])
    assert (descriptors(), len(asyncio.all_tasks())) == before


async def test_a_drain_survives_a_crash(start_engine: StartEngine, fake: ModuleType, tmp_path: Path) -> None:
    engine = await start_engine(settings={"step_s": 0.002})
    request = ask("a", 40, salt=fake.Programme(crash_at=20, once=str(tmp_path / "once")).salt(), top_logprobs=0)
    stream = await engine.submit(request)
    stopping = asyncio.create_task(engine.stop(60.0))
    assert_seamless([chunk async for chunk in stream], request, fake)
    await stopping


async def test_signals_of_the_terminal_do_not_reach_the_engine(start_engine: StartEngine) -> None:
    engine = await start_engine()
    pid = engine.pid
    assert pid is not None
    assert os.getsid(pid) == pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert len(await read(engine, ask("a", 5))) == 5
    assert engine.pid == pid


async def test_the_kernel_prefers_the_engine_as_victim(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert oom_score(engine.pid) > oom_score("self")


PARENT = """
import asyncio, sys, importlib.util
spec = importlib.util.spec_from_file_location("fake_core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
sys.modules["fake_core"] = core
spec.loader.exec_module(core)
from edgewise.engine.client import EngineClient
from edgewise.engine.request import GenerateRequest, SamplingParams

async def main():
    engine = EngineClient(core.fake_config(), factory=sys.argv[1] + ":build")
    await engine.start()
    await engine.wait_ready(30)
    busy = core.Programme(hang_at=3).salt() if sys.argv[2] == "busy" else ""
    request = GenerateRequest(id="a", prompt=(1,), sampling=SamplingParams(max_tokens=5), salt=busy)
    stream = await engine.submit(request)
    await stream.__anext__()
    print(engine.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_service_that_is_killed_leaves_no_orphan(state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(CORE), state], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.kill()
    deadline = time.monotonic() + 60.0
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """False too for a zombie, which waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("parent", "status"), [(1, 69), (None, 69)])
def test_a_worker_without_its_service_ends(parent: int | None, status: int) -> None:
    """With a parent that is gone already, and with a socket that is at its end."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "edgewise.engine.worker", "--fd", str(theirs.fileno())]
    command += ["--parent", str(os.getpid() if parent is None else parent), "--factory", "x:y"]
    with ours, theirs, subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as worker:
        theirs.close()
        if parent is None:
            ours.close()
        assert worker.wait(120) == status


def test_garbage_on_the_socket_ends_the_worker_with_a_typed_error() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "edgewise.engine.worker", "--fd", str(theirs.fileno())]
    command += ["--parent", str(os.getpid()), "--factory", "x:y"]
    with ours, theirs, subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE) as worker:
        theirs.close()
        ours.send(b"GET / HTTP/1.1\r\n\r\n")
        _, stderr = worker.communicate(timeout=30)
    assert worker.returncode == 70
    assert b"ProtocolError" in stderr


async def test_a_worker_that_talks_nonsense_is_replaced(
    start_engine: StartEngine, fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version on disk than in memory: the frames say so, the engine is not believed."""
    events: list[EngineEvent] = []
    engine = await start_engine(events=events)
    monkeypatch.setattr(transport, "VERSION", 2)
    await until(lambda: "crashed" in kinds(events))
    monkeypatch.undo()
    assert any("protocol version" in event.message for event in events if event.kind == "crashed")
    assert len(await read(engine, ask("a", 3))) == 3
