"""/edgewise/v1/cache: who holds what, and forgetting it by tier and model, on disk too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.engine.api import EngineStats
from edgewise.engine.tiers import folder
from edgewise.engine.tiers.disk import DiskSpec, DiskStore
from tests.api.harness import Api, make_api
from tests.fakes.engine import FakeEngine

CACHE = "/edgewise/v1/cache"


@pytest.fixture
def api(tmp_path: Path) -> Api:
    api = make_api()
    api.deps.cache_folder = tmp_path
    for model in ("tiny", "gone"):
        spec = DiskSpec(
            root=tmp_path,
            limit=2**20,
            model=model,
            model_digest=model,
            numeric_class="class",
            key=model,
            page_bytes=8,
            reserve=0,
        )
        store = DiskStore(spec, notify=lambda kind, message: None)
        store.open()
        store.write([(bytes(32), memoryview(bytes(8)))])
    return api


def on_disk(api: Api) -> set[str]:
    assert api.deps.cache_folder is not None
    return {item.model for item in folder.stored(api.deps.cache_folder)}


async def test_everything_is_shown(api: Api) -> None:
    report = (await api.get(CACHE)).json()
    (model,) = report["models"]
    assert model["model"] == "tiny"
    assert set(model["tiers"]) == {"device", "host", "disk"}
    assert {"pages", "bytes", "hits", "misses", "refused", "dropped", "off"} <= set(model["tiers"]["disk"])
    assert {(it["model"], it["files"], it["numeric_class"]) for it in report["disk"]} == {
        ("tiny", 1, "class"),
        ("gone", 1, "class"),
    }


async def test_clear_all(api: Api) -> None:
    report = (await api.request("DELETE", CACHE)).json()
    assert report["pages"] == {"tiny": {"device": 3, "host": 2}}
    assert (report["disk_files"], report["disk_bytes"]) == (2, 2 * (4096 + 8))
    assert on_disk(api) == set()
    assert (await api.get("/edgewise/v1/events")).json()["events"][-1]["kind"] == "cache_cleared"


async def test_clear_one_tier(api: Api) -> None:
    report = (await api.request("DELETE", f"{CACHE}?tier=host")).json()
    assert report == {"pages": {"tiny": {"host": 2}}, "disk_files": 0, "disk_bytes": 0}
    assert api.engine.cleared == ["host"]
    assert on_disk(api) == {"tiny", "gone"}


async def test_clear_one_model_loaded_or_not(api: Api) -> None:
    assert (await api.request("DELETE", f"{CACHE}?model=gone")).json()["disk_files"] == 1
    assert on_disk(api) == {"tiny"}
    assert api.engine.cleared == []
    assert (await api.request("DELETE", f"{CACHE}?model=tiny&tier=disk")).json()["disk_files"] == 1
    assert api.engine.cleared == ["disk"]


@pytest.mark.parametrize(("query", "status"), [("tier=ram", 400), ("tier=", 400), ("model=nobody", 404)])
async def test_what_is_not_there_is_refused_by_name(api: Api, query: str, status: int) -> None:
    response = await api.request("DELETE", f"{CACHE}?{query}")
    assert response.status_code == status
    assert response.json()["error"]["param"] == query.split("=")[0]
    assert on_disk(api) == {"tiny", "gone"}


async def test_counters_are_on_metrics_and_memory() -> None:
    class Busy(FakeEngine):
        async def stats(self) -> EngineStats:
            return EngineStats(host_pages=4, disk_bytes=1000, disk_hits=7, disk_refused=1)

    api = make_api(Busy())
    text = (await api.get("/metrics")).text
    for line in ("host_pages{", "disk_bytes{", "disk_hits_total{", "disk_refused_total{", "disk_off{"):
        assert f"edgewise_engine_{line}" in text
    (report,) = (await api.get("/edgewise/v1/memory")).json()["models"]
    assert report["tiers"]["disk"]["hits"] == 7
    assert report["tiers"]["host"]["pages"] == 4


async def test_an_engine_that_does_not_answer_shows_no_tiers() -> None:
    class Mute(FakeEngine):
        async def stats(self) -> Any:
            raise EngineUnavailable("The engine is away.")

    report = (await make_api(Mute()).get(CACHE)).json()
    assert report == {"models": [{"model": "tiny", "tiers": None}], "disk": []}
