"""A state folder on a real file system that is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.errors import StorageError
from edgewise.core.files import atomic_write
from edgewise.security.keys import KeyStore


def fill(disk: Path) -> Path:
    """Take all space that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def create_many(store: KeyStore) -> None:
    for n in range(1000):
        store.create(f"n{n}")


def test_keys_on_a_full_disk(small_disk: Path) -> None:
    with KeyStore(small_disk / "keys.db") as store:
        _, first = store.create("first")
        ballast = fill(small_disk)
        with pytest.raises(StorageError, match="disk is full"):
            create_many(store)
        made = len(store.list())
        assert store.verify(first)
        assert store.check() == "ok"
        ballast.unlink()
        _, later = store.create("after-space-came-back")
        assert store.verify(later)
        assert len(store.list()) == made + 1


def test_files_on_a_full_disk(small_disk: Path) -> None:
    target = small_disk / "file"
    atomic_write(target, "old")
    ballast = fill(small_disk)
    with pytest.raises(StorageError, match="the disk is full"):
        atomic_write(target, "x" * 100_000)
    assert target.read_text() == "old"
    assert {path.name for path in small_disk.iterdir()} == {"file", "ballast"}
    ballast.unlink()
    atomic_write(target, "new")


def test_opening_the_keys_on_a_full_disk(small_disk: Path) -> None:
    fill(small_disk)
    with KeyStore(small_disk / "keys.db") as store, pytest.raises(StorageError, match="disk is full"):
        store.create("a")
