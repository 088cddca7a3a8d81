"""Files of callers: entered with all of their bytes or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import NotFound, StorageError
from edgewise.core.sqlite import Database
from edgewise.pipeline.batches.files import Files, StoredFile, copy_from
from edgewise.pipeline.state import open_state
from tests.security.test_full_disk import fill


@pytest.fixture
def state() -> Iterator[Database]:
    database = open_state(None)
    yield database
    database.close()


async def add(files: Files, data: bytes, owner: str = "me", expires_s: float | None = 100) -> StoredFile:
    write = copy_from(io.BytesIO(data))
    return await files.add(owner, purpose="batch", filename="in.jsonl", write=write, expires_s=expires_s)


async def test_bytes_come_back_and_only_to_their_owner(tmp_path: Path, state: Database) -> None:
    files = Files(state, tmp_path / "files")
    file = await add(files, b"hello")
    assert files.path(file.id).read_bytes() == b"hello"
    assert await files.get("me", file.id) == file
    assert await files.of_owner("you") == []
    with pytest.raises(NotFound):
        await files.delete("you", file.id)
    await files.delete("me", file.id)
    assert list((tmp_path / "files").iterdir()) == []


async def test_expired_and_orphaned_bytes_are_swept(tmp_path: Path, state: Database) -> None:
    clock = FakeClock()
    files = Files(state, tmp_path / "files", clock=clock)
    old = await add(files, b"old", expires_s=10)
    kept = await add(files, b"kept", expires_s=None)
    (tmp_path / "files" / "file-orphan.part").write_bytes(b"of a crash")
    (tmp_path / "files" / "notes.txt").write_bytes(b"not ours")
    clock.advance(11)
    with pytest.raises(NotFound):
        await files.get("me", old.id)
    assert await files.sweep() == 2
    assert {path.name for path in (tmp_path / "files").iterdir()} == {kept.id, "notes.txt"}


async def test_the_sum_is_limited_and_what_is_refused_leaves_nothing(tmp_path: Path, state: Database) -> None:
    files = Files(state, tmp_path / "files", total_bytes=10)
    await add(files, b"12345678")
    with pytest.raises(StorageError, match=r"2 of files\.total_bytes"):
        await add(files, b"123")
    await add(files, b"12")
    assert len(list((tmp_path / "files").iterdir())) == 2


async def test_a_full_disk_refuses_and_heals(small_disk: Path, state: Database) -> None:
    files = Files(state, small_disk / "files")
    first = await add(files, b"first")
    ballast = fill(small_disk)
    with pytest.raises(StorageError, match="disk is full"):
        await add(files, b"x" * 300_000)
    assert files.path(first.id).read_bytes() == b"first"
    ballast.unlink()
    await add(files, b"x" * 300_000)
    assert len(list((small_disk / "files").iterdir())) == 2
