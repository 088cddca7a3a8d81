"""Fixtures of the store's tests: a hostile HTTP server, and entries whose bytes are made up."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgewise.models.catalog import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.store import Store
from tests.fakes.gguf import gguf_bytes

FAKES = Path(__file__).parents[2] / "fakes"


def load_fake(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edgewise_fake_{name}", FAKES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake_server() -> ModuleType:
    """The module of the hostile server."""
    return load_fake("model_server")


@pytest.fixture
def server(fake_server: ModuleType) -> Iterator[Any]:
    with fake_server.serving() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home" / "models", reserve_bytes=0)


@pytest.fixture
def payload() -> bytes:
    """300,000 bytes that do not repeat: a GGUF file."""
    return gguf_bytes(random.Random(7).randbytes(299_936))


@pytest.fixture
def entry_for() -> Callable[..., CatalogEntry]:
    """Makes an entry of one GGUF file with the given bytes and sources."""

    def make(body: bytes, *sources: Any, name: str = "made-up", file: str = "made-up.gguf") -> CatalogEntry:
        stored = StoredFile(name=file, sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        info = ModelInfo(role="llm", format="gguf", licence_model="CC0-1.0")
        return CatalogEntry(name=name, info=info, files=(CatalogFile(file=stored, sources=sources),))

    return make


@pytest.fixture
def tree() -> Callable[[Path], dict[str, int]]:
    """All files below a folder with their sizes, but for the lock."""

    def list_files(root: Path) -> dict[str, int]:
        found = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
        found.pop("lock", None)
        return found

    return list_files
