"""Files that ship inside Edgewise: they are what the catalog says, and the store takes them without a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgewise.core.errors import SourceUnavailable
from edgewise.models.catalog import BUILT_IN, load_catalog
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.packaged import ROOT, PackagedSource
from edgewise.models.store import Store

SHIPPED = [
    (item.file, source)
    for entry in BUILT_IN
    for item in entry.files
    for source in item.sources
    if isinstance(source, PackagedSource)
]


@pytest.mark.parametrize(("file", "source"), SHIPPED, ids=[file.name for file, _ in SHIPPED])
def test_what_ships_is_what_the_catalog_pins(file: StoredFile, source: PackagedSource) -> None:
    data = (ROOT / source.place).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
    assert len(data) <= 24_000_000


def test_the_store_takes_a_shipped_file_offline(tmp_path: Path) -> None:
    store = Store(tmp_path / "models", reserve_bytes=0, offline=True)
    entry = load_catalog().find("starter-pictures")
    shipped = tuple(item for item in entry.files if isinstance(item.sources[0], PackagedSource))
    assert [item.file.name for item in shipped] == ["config.json", "model.safetensors"]
    info = ModelInfo(role="diffusion", format="safetensors", licence_model="Apache-2.0")
    manifest = store.pull(CatalogEntry(name="shipped", info=info, files=shipped))
    assert manifest.source.startswith("packaged:diffusion/starter/weights/")
    assert str(ROOT) not in manifest.source


def test_a_file_that_is_not_there_is_said_to_be(store: Store) -> None:
    item = CatalogFile(
        file=StoredFile(name="x.bin", sha256="0" * 64, size=1), sources=(PackagedSource("nothing/x.bin"),)
    )
    info = ModelInfo(role="diffusion", format="safetensors", licence_model="Apache-2.0")
    with pytest.raises(SourceUnavailable, match=r"x\.bin"):
        store.pull(CatalogEntry(name="gone", info=info, files=(item,)))
