"""Files that are made of others at a pull: resumed, checked, and nothing of the original stays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgewise.core.errors import DigestMismatch
from edgewise.models.catalog import CatalogEntry
from edgewise.models.manifest import StoredFile
from edgewise.models.sources.converted import ConvertedSource
from edgewise.models.sources.file import FileSource
from edgewise.models.store import Store

PIECE = 50_000


def backwards(path: Path, name: str) -> Iterator[bytes]:
    """A converter: the bytes of each piece in reverse."""
    data = path.read_bytes()
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE][::-1]


@pytest.fixture
def converted(payload: bytes, tmp_path: Path) -> tuple[bytes, ConvertedSource]:
    path = tmp_path / "original.bin"
    path.write_bytes(payload)
    original = StoredFile(name="original.bin", sha256=hashlib.sha256(payload).hexdigest(), size=len(payload))
    source = ConvertedSource(
        source=FileSource(path), original=original, converter=f"{__name__}:backwards", name="made-up.gguf"
    )
    return b"".join(backwards(path, "")), source


def test_the_made_file_alone_is_kept(
    store: Store,
    converted: tuple[bytes, ConvertedSource],
    entry_for: Callable[..., CatalogEntry],
    tree: Callable[[Path], dict[str, int]],
) -> None:
    body, source = converted
    entry = entry_for(body, source)
    store.pull(entry)
    assert store.resolve("made-up", "llm").paths["made-up.gguf"].read_bytes() == body
    assert sorted(size for name, size in tree(store.root).items() if "manifests" not in name) == [len(body)]


@pytest.mark.parametrize("held", [1, PIECE - 1, PIECE, PIECE + 7])
def test_a_beginning_of_an_earlier_attempt_is_continued(
    store: Store, converted: tuple[bytes, ConvertedSource], entry_for: Callable[..., CatalogEntry], held: int
) -> None:
    body, source = converted
    entry = entry_for(body, source)
    partial = store.root / "partial" / entry.files[0].file.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(body[:held])
    store.pull(entry)
    assert store.resolve("made-up", "llm").paths["made-up.gguf"].read_bytes() == body


def test_another_original_is_refused_before_anything_is_made_of_it(
    store: Store, converted: tuple[bytes, ConvertedSource], entry_for: Callable[..., CatalogEntry], tmp_path: Path
) -> None:
    body, source = converted
    (tmp_path / "original.bin").write_bytes(bytes(len(body)))
    with pytest.raises(DigestMismatch, match=r"original\.bin"):
        store.pull(entry_for(body, source))


def test_a_converter_that_makes_other_bytes_is_refused(
    store: Store, converted: tuple[bytes, ConvertedSource], entry_for: Callable[..., CatalogEntry]
) -> None:
    body, source = converted
    with pytest.raises(DigestMismatch, match=r"made-up\.gguf"):
        store.pull(entry_for(body[::-1], source))
