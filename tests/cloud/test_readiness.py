"""/readyz of a cloud engine: a real token, not a green light."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from edgewise.cloud.executors.local import LocalExecutor
from edgewise.cloud.intake.catalog import Catalog
from edgewise.cloud.readiness import BackEndReadiness
from edgewise.cloud.tenants import Tenants
from edgewise.core.clock import FakeClock
from edgewise.core.errors import EngineUnavailable
from edgewise.pipeline.model import Models
from edgewise.wire.http import CLOUD, JOBS
from scripts.service import free_port
from tests.api.harness import until
from tests.cloud.service import body, cloud_engine
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import fake_model


async def test_a_back_end_is_ready_when_it_has_answered_a_token_recently() -> None:
    clock, engine = FakeClock(), FakeEngine()
    executor = LocalExecutor(Models([fake_model(engine)]))
    answered: list[float] = []
    catalog = Catalog(executor, Tenants())
    ready = BackEndReadiness(
        executor, catalog, lambda: answered[-1] if answered else None, clock=clock, probe_timeout_s=1.0
    )
    assert await ready.check() is None
    assert len(engine.requests) == 1
    clock.advance(25.0)
    answered.append(clock.monotonic())  # a job brought an item: no probe for 30 s
    clock.advance(29.0)
    assert await ready.check() is None
    assert len(engine.requests) == 1

    clock.advance(31.0)
    engine.refuse = EngineUnavailable("It is broken.")
    assert "It is broken." in str(await ready.check())
    engine.refuse = None
    assert "It is broken." in str(await ready.check())  # not asked again within a second
    clock.advance(1.1)
    engine.hold.clear()
    assert "no token came" in str(await ready.check())
    assert engine.open == {}
    engine.hold.set()
    engine.fault = Fault(request=len(engine.requests), at=0, message="As ordered.")
    clock.advance(1.1)
    assert await ready.check() == "As ordered."
    clock.advance(1.1)
    assert await ready.check() is None


async def test_a_cloud_whose_upstream_is_dead(tmp_path: Path) -> None:
    upstream = f"http://127.0.0.1:{free_port()}/v1"
    async with cloud_engine(tmp_path, executor="http", upstream=upstream) as cloud:
        begin = time.monotonic()
        info = await cloud.get(CLOUD)
        assert (info.status_code, info.json()["models"]) == (200, [])
        assert time.monotonic() - begin < 20
        assert (await cloud.post(JOBS, body())).status_code == 503
        response = await cloud.get("/readyz")
        assert (response.status_code, response.json()["reason"]) == (503, "the back end has no models now")


async def test_a_back_end_that_does_not_answer_makes_nobody_wait_and_what_it_never_had_is_not_found(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with cloud_engine(tmp_path, engine) as cloud:
        assert cloud.part is not None
        assert (await cloud.get(CLOUD)).json()["models"]
        catalog, asked = cloud.part.intake.catalog, asyncio.Event()

        async def gone() -> list[object]:
            asked.set()
            return []

        catalog._executor.capabilities = gone  # type: ignore[assignment]
        catalog.forget()
        assert (await cloud.post(JOBS, body(work={"model": "other"}))).status_code == 404
        assert (await cloud.post(JOBS, body())).status_code == 503
        assert asked.is_set()

        async def hanging() -> list[object]:
            await asyncio.sleep(3600)
            return []

        catalog._executor.capabilities = hanging  # type: ignore[assignment]
        catalog.forget()
        begin = time.monotonic()
        assert (await cloud.get(CLOUD)).status_code == 200
        assert time.monotonic() - begin < 60


async def test_a_damaged_table_is_told_with_its_remedy_and_never_ready(tmp_path: Path) -> None:
    (tmp_path / "cloud.db").write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    async with cloud_engine(tmp_path) as cloud:
        response = await cloud.post(JOBS, body())
        assert response.status_code == 507
        assert "restore it from a backup" in response.text
        ready = await cloud.get("/readyz")
        assert ready.status_code == 503
        await until(lambda: cloud.part is not None and "damaged" in str(cloud.part._closed))
        assert "move it away" in (await cloud.get("/readyz")).json()["reason"]
