"""Adapters beside their models as a service shows them: who is listed, what is loaded for them, and what an unload leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from edgewise.core.errors import ModelNotFound, UnsupportedField
from edgewise.models.adapters.inspecting import inspect_adapter
from edgewise.models.tiny import make_tiny_model
from tests.api.harness import until
from tests.fakes.adapters import make_adapter
from tests.serving.test_installed import Device, answer


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {name: make_tiny_model(folder / name, seed=seed) for seed, name in enumerate(("one", "two"))}


async def start(home: Path, sources: dict[str, Path], **settings: Any) -> Device:
    """Model "one" is pinned; "two" has the adapter "pirate"."""
    made = Device(home, sources, **settings)
    folder = make_adapter(home / "pirate", sources["two"])
    made.store.install(inspect_adapter(folder, "pirate", made.store.resolve("two")), folder)
    return await made.start()


@pytest_asyncio.fixture
async def device(tmp_path: Path, sources: dict[str, Path]) -> AsyncIterator[Device]:
    made = await start(tmp_path, sources)
    yield made
    await made.models.close()


def shown(device: Device) -> list[str]:
    return sorted(model.name for model in device.models.status().models)


def running(device: Device) -> list[str]:
    return sorted(
        engine.config.model.name + ("+adapters" if engine.config.adapters else "") for engine in device.works.running
    )


async def test_the_engine_of_adapters_is_shown_and_stopped_by_its_own_name(device: Device) -> None:
    assert await answer(device.models, "two") == 2
    assert await answer(device.models, "two:pirate") == 2
    assert shown(device) == ["one", "two", "two+adapters"]
    assert all(model.digest for model in device.models.status().models)
    await device.models.unload("two+adapters")
    await until(lambda: running(device) == ["one", "two"])
    assert await answer(device.models, "pirate") == 2
    await device.models.unload("pirate")
    await until(lambda: running(device) == ["one", "two"])


async def test_the_engine_of_adapters_is_no_model_that_can_be_asked(device: Device) -> None:
    for ask in (device.models.open, device.models.load, device.models.unload):
        with pytest.raises(ModelNotFound, match=r"'two\+adapters'"):
            await ask("two+adapters")
    assert await answer(device.models, "pirate") == 2
    for ask in (device.models.open, device.models.load):
        with pytest.raises(ModelNotFound, match=r"'two\+adapters'"):
            await ask("two+adapters")
    assert running(device) == ["one", "two+adapters"]


async def test_how_long_a_model_is_kept_holds_for_its_adapters(tmp_path: Path, sources: dict[str, Path]) -> None:
    device = await start(tmp_path, sources, **{"pool.keep_alive": ["two=77"]})
    assert await answer(device.models, "pirate") == 2
    (expires,) = [one.expires_s for one in device.models.status().models if one.name == "two+adapters"]
    assert expires is not None
    assert 60 < expires <= 77
    await device.models.close()


async def test_an_unloaded_engine_leaves_no_tokenizer_of_its_adapters(device: Device) -> None:
    assert await answer(device.models, "pirate") == 2
    assert [model.name for model in device.models.all()] == ["one", "pirate"]
    await device.models.unload("pirate")
    await until(lambda: [model.name for model in device.models.all()] == ["one"])
    assert await answer(device.models, "pirate") == 2


async def test_adapters_are_listed_if_they_may_be_asked(tmp_path: Path, sources: dict[str, Path]) -> None:
    device = await start(tmp_path, sources, models=["pirate"])
    cards = {card.name: card for card in await device.models.cards()}
    assert sorted(cards) == ["one", "pirate"]
    assert (cards["pirate"].aliases, cards["pirate"].context, cards["pirate"].loaded) == (("two:pirate",), 512, False)
    assert await answer(device.models, "pirate") == 2
    assert {card.name: card.loaded for card in await device.models.cards()}["pirate"]
    with pytest.raises(ModelNotFound):
        await device.models.open("two")
    device.store.remove("two")
    assert [card.name for card in await device.models.cards()] == ["one"]
    await device.models.close()


@pytest.mark.parametrize("kernels", ["triton"])
async def test_where_other_kernels_are_set_nothing_is_loaded_for_adapters(
    kernels: str, tmp_path: Path, sources: dict[str, Path]
) -> None:
    asked: dict[str, Any] = {"engine.kernels": kernels}
    device = Device(tmp_path, sources, **asked)
    folder = make_adapter(tmp_path / "pirate", sources["two"])
    device.store.install(inspect_adapter(folder, "pirate", device.store.resolve("two")), folder)
    with pytest.raises(UnsupportedField, match=r"Set engine\.kernels to auto"):
        await device.models.open("pirate")
    assert (device.models.all(), shown(device)) == ((), [])
    await device.models.close()
