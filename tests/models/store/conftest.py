"""Fixtures of the store's tests: a hostile HTTP server, and entries whose bytes are made up."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.models.catalog import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.store import Store
from tests.fakes.gguf import gguf_bytes
from tests.fakes.model_server import ModelServer, serving


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as running:
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
