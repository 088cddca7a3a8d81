"""Replicas as Ray actors: real Ray and engine processes around the deterministic fake core. One Ray for all of these tests."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import psutil
import pytest
import pytest_asyncio

from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.executors.ray import RayExecutor
from edgewise.cloud.executors.ray_cluster import _hold, remove_stale
from edgewise.cloud.executors.ray_models import one_of
from edgewise.core.errors import BadModelFile, ConfigError, EngineUnavailable, InvalidRequest
from edgewise.core.metrics import Metrics
from edgewise.engine.config import EngineConfig
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.pipeline.model import ModelCard, Models
from edgewise.wire.messages import GenerateWork
from tests.fakes.core import Programme, expected, fake_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAKE_CORE = Path(__file__).parents[2] / "fakes" / "core.py"
STEP_S = 0.005


class TwoModels(Models):
    """Cards of two installed models, of which "broken" cannot be loaded."""

    async def cards(self) -> tuple[ModelCard, ...]:
        common = {"aliases": (), "context": 100, "created": 0, "owned_by": "edgewise", "chat": True, "loaded": False}
        return tuple(
            ModelCard(name=name, digest=f"sha256:{digit * 64}", **common)  # type: ignore[arg-type]
            for name, digit in (("fake", "a"), ("broken", "b"))
        )


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics(process=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(tmp_path_factory: pytest.TempPathFactory, metrics: Metrics) -> AsyncIterator[RayExecutor]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed here")
    folder = tmp_path_factory.mktemp("fake")
    for name, settings in (("fake", {"step_s": STEP_S}), ("broken", {"load_error": "bad_model_file"})):
        (folder / f"{name}.json").write_text(json.dumps(settings))

    async def config_of(model: str) -> EngineConfig:
        return fake_config(folder / f"{model}.json")

    made = RayExecutor(TwoModels(), config_of, replicas=2, most_models=2, factory=f"{FAKE_CORE}:build", metrics=metrics)
    made.start()
    try:
        yield made
    finally:
        await made.stop()


def order(job: str, max_tokens: int = 20, *, tokens: tuple[int, ...] = (), tenant: str = "", **work: object) -> Order:
    sampling = {"max_tokens": max_tokens, "seed": 7}
    asked = GenerateWork.model_validate({"model": "fake", "prompt": (1, 2, 3), "sampling": sampling, **work})
    return Order(job=job, attempt=1, work=asked, tokens=tokens, tenant=tenant)


def undisturbed(max_tokens: int) -> tuple[int, ...]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=7)
    return expected(GenerateRequest(id="x", prompt=(1, 2, 3), sampling=sampling))[0]


async def read(executor: RayExecutor, asked: Order) -> list[Produced]:
    return [produced async for produced in executor.run(asked)]


def tokens_of(produced: list[Produced]) -> tuple[int, ...]:
    return tuple(token for one in produced for token in one.tokens or ())


async def until(condition: Callable[[], bool]) -> None:
    """Bounded by the test's own time limit."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


def living(executor: RayExecutor) -> int:
    return sum(place.actor is not None for place in executor.places("fake"))


async def test_streams_run_on_the_replica_with_the_least_to_do(executor: RayExecutor) -> None:
    await read(executor, order("first"))
    await until(lambda: living(executor) == 2)
    answers = [asyncio.create_task(read(executor, order(f"j{number}", 60))) for number in range(8)]
    await until(lambda: sum(place.streams for place in executor.places("fake")) == 8)
    assert [place.streams for place in executor.places("fake")] == [4, 4]
    for produced in await asyncio.gather(*answers):
        assert tokens_of(produced) == undisturbed(60)
        assert produced[-1].finish == "length"
        assert produced[-1].facts is not None
        assert produced[-1].facts["completion_tokens"] == 60
        assert produced[-1].numeric_class == "fake"
    assert [place.streams for place in executor.places("fake")] == [0, 0]


async def test_it_goes_on_after_the_tokens_of_the_log(executor: RayExecutor) -> None:
    produced = await read(executor, order("resumed", 20, tokens=undisturbed(20)[:13]))
    assert tokens_of(produced) == undisturbed(20)[13:]


async def test_a_refusal_is_raised_as_itself(executor: RayExecutor) -> None:
    with pytest.raises(InvalidRequest, match="the fake core says") as refused:
        await read(executor, order("refused", tenant=Programme(refuse="invalid_value").salt()))
    assert refused.value.param == "fake"


async def test_closing_the_iterator_ends_the_work_in_the_replica(executor: RayExecutor) -> None:
    stream = executor.run(order("left", 1_000_000))
    first = await anext(stream)
    assert first.tokens
    await stream.aclose()
    again = await read(executor, order("left", 5))  # the same name is free once it has ended there
    assert tokens_of(again) == undisturbed(5)
    assert [place.streams for place in executor.places("fake")] == [0, 0]


async def test_a_replica_killed_in_mid_stream_is_replaced_and_any_other_goes_on_at_the_same_place(
    executor: RayExecutor, metrics: Metrics
) -> None:
    """What a worker does: the attempt fails retryably, the next one carries the tokens that were logged."""
    await read(executor, order("before"))
    await until(lambda: living(executor) == 2)
    victim = executor.places("fake")[0]
    assert victim.opened is not None
    pid, engine = victim.opened.pid, victim.opened.info.pid
    total, half = undisturbed(200), []
    streams = [executor.run(order(f"k{number}", 200)) for number in range(6)]
    logs = [[*((await anext(stream)).tokens or ())] for stream in streams]
    assert victim.streams == 3
    os.kill(pid, signal.SIGKILL)
    for stream, log in zip(streams, logs, strict=True):
        try:
            async for produced in stream:
                log += produced.tokens or ()
        except EngineUnavailable:
            half.append(log)
    assert len(half) == 3
    for number, log in enumerate(half):
        assert tuple(log) == total[: len(log)]
        assert len(log) < len(total)
        log += tokens_of(await read(executor, order(f"n{number}", 200, tokens=tuple(log))))
    assert {tuple(log) for log in logs} == {total}
    await until(lambda: living(executor) == 2)
    assert victim.opened.pid != pid
    assert not psutil.pid_exists(engine) or psutil.Process(engine).status() == psutil.STATUS_ZOMBIE
    assert metrics.value("edgewise_cloud_replica_deaths_total") == 1.0
    assert metrics.value("edgewise_cloud_replicas") == 2.0


async def test_an_engine_killed_below_its_replica_is_no_matter_of_the_service(executor: RayExecutor) -> None:
    stream = executor.run(order("engine", 200))
    log = [*((await anext(stream)).tokens or ())]
    (place,) = [place for place in executor.places("fake") if place.streams]
    assert place.opened is not None
    pid = place.opened.pid
    for engine in psutil.Process(pid).children():
        os.kill(engine.pid, signal.SIGKILL)
    async for produced in stream:
        log += produced.tokens or ()
    assert tuple(log) == undisturbed(200)
    assert place.opened.pid == pid


async def test_a_model_that_cannot_be_loaded_says_why(executor: RayExecutor) -> None:
    with pytest.raises(BadModelFile):
        await read(executor, order("broken", model="broken"))


async def test_capabilities_name_what_is_installed_and_what_living_replicas_are(executor: RayExecutor) -> None:
    await read(executor, order("c"))
    fake, broken = await executor.capabilities()
    assert (fake.model, fake.reads, fake.numeric_class) == ("fake", "tokens", "fake")
    assert fake.precision == {"dtype": "float32", "kv_dtype": "float32", "quantize": "none"}
    assert (broken.model, broken.numeric_class) == ("broken", None)


async def test_every_socket_of_ray_is_on_loopback(executor: RayExecutor) -> None:
    await read(executor, order("s"))
    family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    listening = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in family]
    assert listening
    assert {getattr(one.laddr, "ip", "").removeprefix("::ffff:") for one in listening} == {"127.0.0.1"}


async def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'edgewise\[ray\]'"):
        RayExecutor(TwoModels(), AsyncMock(), replicas=1)


async def test_what_a_killed_service_left_of_ray_is_removed_and_nothing_else(tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    folders = {name: tmp_path / f"edgewise-ray-{name}" for name in ("stale", "living", "young")}
    for folder in folders.values():
        (folder / "session").mkdir(parents=True)
    (tmp_path / "edgewise-ray-link").symlink_to(folders["living"])
    with _hold(folders["living"] / "edgewise.lock"):
        for name in ("stale", "living"):
            os.utime(folders[name], (long_ago, long_ago))
        assert remove_stale(tmp_path) == [folders["stale"]]
    left = await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.iterdir()))
    assert left == ["edgewise-ray-link", "edgewise-ray-living", "edgewise-ray-young"]


async def test_replicas_share_the_memory_and_only_one_engine_may_own_a_cache_on_disk() -> None:
    config = replace(fake_config(), disk_cache_dir="/cache", disk_cache_bytes=5, host_cache_bytes=5)
    one = one_of(config, 4, 1000)
    assert (one.memory_budget_bytes, one.disk_cache_dir, one.disk_cache_bytes, one.host_cache_bytes) == (
        250,
        None,
        0,
        0,
    )
