from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import UnsupportedModel
from edgewise.core.settings import Settings, load_settings
from edgewise.engine.config import EngineConfig
from edgewise.engine.events import EngineEvent
from edgewise.engine.machine import Machine
from edgewise.engine.pool.book import PoolBook
from edgewise.engine.pool.pool import EnginePool, ManagedEngine
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.models.weights import gguf
from edgewise.models.weights.file import RangeFile
from edgewise.serving.installed import InstalledModels
from edgewise.serving.served import read_model
from tests.fakes.gguf import gguf_bytes

MACHINE = Machine(cuda=False, capability=None, available=8 << 30)


def settings(home: Path, model: str) -> Settings:
    return load_settings(overrides={"home": str(home), "model": model}, environ={}).settings


def no_engine(config: EngineConfig, on_event: object) -> ManagedEngine:
    raise AssertionError(f"{config.model.name} is not to be loaded")


def no_event(model: str, event: EngineEvent) -> None:
    raise AssertionError(f"{model}: {event.kind}")


def installed(home: Path, model: str) -> InstalledModels:
    pool = EnginePool(PoolBook(4 << 30, wait_s=1.0, retry_s=1.0), no_engine, on_event=no_event)
    return InstalledModels(settings(home, model), Store(home / "models"), MACHINE, pool)


def install(home: Path, path: Path, name: str) -> Store:
    store = Store(home / "models", reserve_bytes=0)
    store.import_path(path, name)
    return store


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    folder = make_tiny_model(tmp_path / "tiny", format="gguf")
    return next(folder.glob("*.gguf"))


async def test_a_model_is_opened_with_one_look_at_its_header(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = install(tmp_path, tiny_gguf, "mine")
    parsed: list[str] = []
    parse = gguf.parse_gguf_header

    def counting(file: RangeFile) -> gguf.GGUFHeader:
        parsed.append(file.name)
        return parse(file)

    monkeypatch.setattr(gguf, "parse_gguf_header", counting)
    models = installed(tmp_path, "mine")
    try:
        served = await models.open("mine")
        assert parsed == ["tiny.gguf"]
        manifest = store.manifest("mine")
        assert (served.name, served.digest) == ("mine", manifest.digest)
        assert served.created == manifest.installed_seconds
        assert served.max_context == manifest.info.context == 512
        assert served.template is not None
        assert served.tokenizer.encode("a")
        assert served.aliases == ()
    finally:
        await models.close()


@pytest.mark.parametrize("configured", ["starter", "smollm2-135m-instruct"])
async def test_who_asks_for_a_set_may_use_its_name(tmp_path: Path, tiny_gguf: Path, configured: str) -> None:
    """Whatever is configured: a label for the set's name holds for whoever asks by it."""
    install(tmp_path, tiny_gguf, "smollm2-135m-instruct")
    models = installed(tmp_path, configured)
    try:
        served = await models.open("starter")
        assert (served.name, served.aliases) == ("smollm2-135m-instruct", ("starter",))
        assert await models.open("smollm2-135m-instruct") is served
    finally:
        await models.close()


def test_a_file_without_a_model_in_it_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(b"x"))
    install(tmp_path, path, "empty")
    with pytest.raises(UnsupportedModel, match=r"^x\.gguf"):
        read_model(settings(tmp_path, "empty"), Store(tmp_path / "models"), "empty", MACHINE)
