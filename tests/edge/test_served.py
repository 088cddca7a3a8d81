from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import UnsupportedModel
from edgewise.core.settings import Settings, load_settings
from edgewise.edge.served import OpenModel, open_model
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.models.weights import gguf
from edgewise.models.weights.file import RangeFile
from tests.fakes.gguf import gguf_bytes


def settings(home: Path, model: str) -> Settings:
    return load_settings(overrides={"home": str(home), "model": model}, environ={}).settings


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
    opened: OpenModel = open_model(settings(tmp_path, "mine"), lambda event: None)
    try:
        assert parsed == ["tiny.gguf"]
        manifest = store.manifest("mine")
        assert (opened.served.name, opened.served.digest) == ("mine", manifest.digest)
        assert opened.served.created == manifest.installed_seconds
        assert opened.served.max_context == manifest.info.context == 512
        assert opened.template is not None
        assert opened.served.tokenizer.encode("a")
        assert opened.served.aliases == ()
    finally:
        await opened.close()


async def test_who_asks_for_a_set_may_use_its_name(tmp_path: Path, tiny_gguf: Path) -> None:
    install(tmp_path, tiny_gguf, "smollm2-135m-instruct")
    opened = open_model(settings(tmp_path, "starter"), lambda event: None)
    try:
        assert (opened.served.name, opened.served.aliases) == ("smollm2-135m-instruct", ("starter",))
    finally:
        await opened.close()


def test_a_file_without_a_model_in_it_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(b"x"))
    install(tmp_path, path, "empty")
    with pytest.raises(UnsupportedModel, match=r"^x\.gguf"):
        open_model(settings(tmp_path, "empty"), lambda event: None)
