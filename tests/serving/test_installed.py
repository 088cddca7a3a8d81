"""The store's models as a service shows them: what can be asked, when it is opened, and what removal and replacement do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from edgewise.core.errors import BadModelFile, InvalidRequest, ModelNotFound, OutOfMemory
from edgewise.core.settings import load_settings
from edgewise.engine.machine import Machine
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.pool import EnginePool
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.serving.installed import InstalledModels
from tests.api.harness import until
from tests.fakes.pool import FakeWorks

ROOM = 4 << 30
ASK = GenerateRequest(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=2))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {name: make_tiny_model(folder / name, seed=seed) for seed, name in enumerate(("one", "two"))}


class Device:
    """A store with models in it, and the service's view of it over engines that need no process."""

    def __init__(self, home: Path, sources: dict[str, Path], *, budget: int = ROOM, **settings: Any) -> None:
        self.store = Store(home / "models", reserve_bytes=0)
        self.sources = sources
        for name in sources:
            if not (home / "models" / "manifests" / f"{name}.json").exists():
                self.store.import_path(sources[name], name)
        self.works = FakeWorks(budget=budget)
        self.pool = EnginePool(
            PoolBook(budget, wait_s=5.0, retry_s=0.1), self.works.make, on_event=lambda name, event: None
        )
        overrides = {"home": str(home), "model": "one", **settings}
        loaded = load_settings(overrides=overrides, environ={}).settings
        machine = Machine(cuda=False, capability=None, available=budget)
        self.models = InstalledModels(loaded, self.store, machine, self.pool)

    async def start(self) -> Device:
        await self.models.open_first()
        self.models.start()
        return self


@pytest_asyncio.fixture
async def device(tmp_path: Path, sources: dict[str, Path]) -> AsyncIterator[Device]:
    made = await Device(tmp_path, sources).start()
    yield made
    await made.models.close()
    assert made.works.running == []


async def answer(models: InstalledModels, name: str, **how: Any) -> int:
    served = await models.open(name, **how)
    return sum([len(chunk.tokens) async for chunk in await served.engine.submit(ASK)])


async def test_all_installed_models_are_listed_the_first_one_first(device: Device) -> None:
    cards = await device.models.cards()
    assert [(card.name, card.loaded, card.context) for card in cards] == [("one", True, 512), ("two", False, 512)]
    assert [model.name for model in device.models.all()] == ["one"]
    assert await answer(device.models, "two") == 2
    assert all(card.loaded and card.chat for card in await device.models.cards())


async def test_a_model_is_opened_once_however_many_ask_and_not_again(device: Device) -> None:
    first, second = await asyncio.gather(device.models.open("two"), device.models.open("two"))
    assert first is second
    assert await device.models.open("two") is first


@pytest.mark.parametrize("name", ["nope", "../one", "One Two", "", "x" * 5000])
async def test_a_name_that_is_not_there_is_404_naming_what_is(device: Device, name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"Models served: 'one', 'two'"):
        await device.models.open(name)


async def test_settings_may_restrict_what_is_asked(tmp_path: Path, sources: dict[str, Path]) -> None:
    made = await Device(tmp_path, sources, models=["one"]).start()
    assert [card.name for card in await made.models.cards()] == ["one"]
    with pytest.raises(ModelNotFound):
        await made.models.open("two")
    await made.models.close()


async def test_a_model_that_is_installed_later_can_be_asked_at_once(device: Device) -> None:
    with pytest.raises(ModelNotFound):
        await device.models.open("three")
    device.store.import_path(device.sources["two"], "three")
    assert await answer(device.models, "three") == 2


async def test_a_removed_model_ends_its_answers_and_is_gone(device: Device) -> None:
    served = await device.models.open("two")
    stream = await served.engine.submit(ASK)
    device.store.remove("two")
    with pytest.raises(ModelNotFound):
        await device.models.open("two")
    assert sum([len(chunk.tokens) async for chunk in stream]) == 2
    await until(lambda: [engine.config.model.name for engine in device.works.running] == ["one"])
    assert [model.name for model in device.models.status().models] == ["one"]


async def test_a_pinned_model_that_is_removed_is_missed(device: Device) -> None:
    assert [model.name for model in device.models.pinned()] == ["one"]
    device.store.remove("one")
    await device.models.cards()
    assert (device.models.pinned(), device.models.absent()) == ((), ("one",))


async def test_a_replaced_model_is_asked_by_its_new_files(device: Device) -> None:
    old = await device.models.open("two")
    assert await answer(device.models, "two") == 2
    device.store.remove("two")
    device.store.import_path(device.sources["one"], "two")
    new = await device.models.open("two")
    assert new.digest != old.digest
    assert await answer(device.models, "two") == 2

    def running() -> list[str]:
        return [engine.config.model.digest for engine in device.works.running if engine.config.model.name == "two"]

    await until(lambda: running() == [new.digest])
    with pytest.raises(ModelNotFound, match="ask again"):
        await old.engine.submit(ASK)


async def test_an_unloaded_model_leaves_no_process_and_no_tokenizer_and_comes_back(device: Device) -> None:
    served = await device.models.open("two", keep_alive_s=0.0)
    pid = served.template.pid  # type: ignore[union-attr]
    assert await answer(device.models, "two", keep_alive_s=0.0) == 2
    await until(lambda: [model.name for model in device.models.all()] == ["one"])
    assert pid is not None
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert await answer(device.models, "two") == 2


async def test_keep_alive_is_shown_and_pinned_models_have_none(device: Device) -> None:
    await answer(device.models, "two", keep_alive_s=100.0)
    await answer(device.models, "one", keep_alive_s=0.0)
    status = {model.name: model for model in device.models.status().models}
    expires = status["two"].expires_s
    assert expires is not None
    assert 90.0 < expires <= 100.0
    assert (status["one"].state, status["one"].expires_s, status["one"].pinned) == ("loaded", None, True)


async def test_loading_and_unloading_by_order(device: Device) -> None:
    await device.models.load("two")
    assert (await device.models.cards())[1].loaded
    await device.models.unload("two")
    await until(lambda: [engine.config.model.name for engine in device.works.running] == ["one"])
    assert not (await device.models.cards())[1].loaded
    with pytest.raises(InvalidRequest, match="'one' is pinned"):
        await device.models.unload("one")


async def test_a_model_whose_files_are_damaged_is_refused_and_the_others_go_on(device: Device) -> None:
    manifest = device.store.manifest("two")
    blob = device.store.resolve("two").paths["config.json"]
    blob.chmod(0o644)
    shutil.copyfile("/dev/null", blob)
    assert manifest.name == "two"
    with pytest.raises(BadModelFile, match="edgewise models"):
        await device.models.open("two")
    assert await answer(device.models, "one") == 2


async def test_a_first_model_that_cannot_fit_is_refused_before_anything_runs(
    tmp_path: Path, sources: dict[str, Path]
) -> None:
    made = Device(tmp_path, sources, budget=1 << 20)
    with pytest.raises(OutOfMemory, match="'one' needs"):
        await made.models.open_first()
    await made.models.close()
