from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud import blobs
from edgewise.cloud.blobs import SILENT_S, UNUSED_S, BlobStore
from edgewise.cloud.jobs.schema import open_jobs
from edgewise.core.clock import FakeClock
from edgewise.core.errors import Cancelled, NotFound, QueueFull, StorageError
from edgewise.wire.http import BLOBS
from tests.api.harness import error_of
from tests.cloud.service import Cloud, cloud_engine
from tests.cloud.tables import DONE, ME, TINY, job_request, open_table

CONTENT = os.urandom(700_001)
SHA = hashlib.sha256(CONTENT).hexdigest()
PATH = f"{BLOBS}/{SHA}"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with cloud_engine(tmp_path) as made:
        yield made


def files(home: Path) -> list[str]:
    return [path.name for path in (home / "cloud-blobs").glob("*/*")]


async def test_up_and_down(cloud: Cloud) -> None:
    response = await cloud.put(SHA, CONTENT, content_type="image/png")
    assert (response.status_code, response.json()) == (
        201,
        {"sha256": SHA, "bytes": len(CONTENT), "media": "image/png"},
    )
    assert (await cloud.put(SHA, CONTENT)).status_code == 200
    down = await cloud.get(PATH)
    assert (down.content, down.headers["content-type"]) == (CONTENT, "image/png")
    head = await cloud.request("HEAD", PATH)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))


@pytest.mark.parametrize(
    ("asked", "first", "last"), [("10-19", 10, 19), ("700000-", 700_000, 700_000), ("-5", 699_996, 700_000)]
)
async def test_a_range_of_it(cloud: Cloud, asked: str, first: int, last: int) -> None:
    await cloud.put(SHA, CONTENT)
    part = await cloud.get(PATH, headers={"range": f"bytes={asked}"})
    assert (part.status_code, part.content) == (206, CONTENT[first : last + 1])
    assert part.headers["content-range"] == f"bytes {first}-{last}/{len(CONTENT)}"


async def test_a_range_that_is_not_there(cloud: Cloud) -> None:
    await cloud.put(SHA, CONTENT)
    response = await cloud.get(PATH, headers={"range": "bytes=700001-"})
    assert response.status_code == 416


async def test_an_upload_is_resumed(cloud: Cloud) -> None:
    total = len(CONTENT)
    first = await cloud.put(SHA, CONTENT[:300_000], content_range=f"bytes 0-299999/{total}")
    assert (first.status_code, first.headers["upload-offset"]) == (202, "300000")
    head = await cloud.request("HEAD", PATH)
    assert (head.status_code, head.headers["upload-offset"]) == (404, "300000")
    gap = await cloud.put(SHA, CONTENT[400_000:], content_range=f"bytes 400000-{total - 1}/{total}")
    assert (gap.status_code, error_of(gap)["param"]) == (416, "content-range")
    overlap = await cloud.put(SHA, CONTENT[200_000:500_000], content_range=f"bytes 200000-499999/{total}")
    assert overlap.headers["upload-offset"] == "500000"
    last = await cloud.put(SHA, CONTENT[500_000:], content_range=f"bytes 500000-{total - 1}/{total}")
    assert last.status_code == 201
    assert (await cloud.get(PATH)).content == CONTENT


async def test_what_is_not_its_hash_is_deleted(cloud: Cloud) -> None:
    response = await cloud.put(SHA, CONTENT[:-1] + b"?")
    assert (response.status_code, error_of(response)["code"]) == (422, "digest_mismatch")
    assert files(cloud.home) == []
    assert (await cloud.get(PATH)).status_code == 404
    assert (await cloud.request("HEAD", PATH)).headers["upload-offset"] == "0"


@pytest.mark.parametrize("text", ["bytes 5-4/10", "bytes 0-10/10", "items 0-1/2", "bytes 0-1/*"])
async def test_malformed_ranges(cloud: Cloud, text: str) -> None:
    assert (await cloud.put(SHA, b"x", content_range=text)).status_code == 400


async def test_names_are_hashes(cloud: Cloud) -> None:
    for name in ("x", "..%2f..%2fkeys.db", SHA.upper()):
        assert (await cloud.put(name, b"x")).status_code in (400, 404)


async def test_limits(tmp_path: Path) -> None:
    async with cloud_engine(tmp_path, max_blob_bytes=1000, tenant_blob_bytes=1500) as cloud:
        large = await cloud.put(SHA, CONTENT)
        assert large.status_code == 413
        contents = [bytes([number]) * 900 for number in range(2)]
        half = await cloud.put(
            hashlib.sha256(contents[0]).hexdigest(), contents[0][:800], content_range="bytes 0-799/900"
        )
        assert half.status_code == 202
        second = await cloud.put(hashlib.sha256(contents[1]).hexdigest(), contents[1])
        assert (second.status_code, error_of(second)["param"]) == (429, "bytes")
        assert cloud.part is not None
        assert cloud.part.intake.blobs._locks == {}


async def test_blobs_are_their_tenants(cloud: Cloud) -> None:
    one, two = cloud.as_tenant("one"), cloud.as_tenant("two")
    await one.put(SHA, CONTENT)
    assert (await two.get(PATH)).status_code == 404
    assert (await two.put(SHA, b"x")).status_code == 422  # that one tenant has it proves nothing for another
    assert (await one.get(PATH)).status_code == 200


async def test_a_job_keeps_its_blobs_until_it_is_acknowledged(tmp_path: Path) -> None:
    clock = FakeClock()
    database = open_jobs(tmp_path / "cloud.db")
    store = BlobStore(database, tmp_path / "cloud-blobs", clock=clock)
    table = await open_table(tmp_path / "cloud.db", clock)
    unused = await store.put(ME, b"unused", "text/plain")
    result = await store.put(ME, b"result", "text/plain")
    jobs = []
    for key in "ab":
        await table.submit(ME, job_request(key), TINY)
        claim = await table.claim("worker")
        assert claim is not None
        jobs.append(await table.finish(claim.lease, replace(DONE, blobs=(result,))))
    clock.advance(UNUSED_S + 1)
    assert await store.sweep() == 1
    with pytest.raises(NotFound):
        await store.find(ME, unused.sha256)
    await table.ack(ME, jobs[0].id, jobs[0].place, done=True)
    assert await store.sweep() == 0
    assert await store.read(ME, result.sha256) == b"result"
    await table.ack(ME, jobs[1].id, jobs[1].place, done=True)
    assert await store.sweep() == 1
    assert files(tmp_path) == []
    await table.close()
    database.close()


class Held:
    """Bytes that come in two halves, the second one when it is let go."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        half = len(self.content) // 2
        yield self.content[:half]
        self.begun.set()
        await self.go.wait()
        yield self.content[half:]


def named(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(2_000_000_000.0)


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[BlobStore]:
    database = open_jobs(tmp_path / "cloud.db")
    yield BlobStore(database, tmp_path / "cloud-blobs", max_bytes=1000, tenant_bytes=1500, clock=clock)
    database.close()


async def test_uploads_under_way_count_and_none_grows_past_the_quota(store: BlobStore, tmp_path: Path) -> None:
    one, other = Held(b"1" * 900), Held(b"2" * 900)
    first = asyncio.create_task(store.write(ME, named(one.content), aiter(one), start=0, total=900, media="x/y"))
    await one.begun.wait()
    with pytest.raises(QueueFull):  # announced
        await store.write(ME, named(other.content), aiter(other), start=0, total=900, media="x/y")
    other.go.set()
    with pytest.raises(QueueFull):  # not announced
        await store.write(ME, named(other.content), aiter(other), start=0, total=None, media="x/y")
    one.go.set()
    blob = await first
    assert blob is not None
    assert await store.read(ME, blob.sha256) == one.content


async def test_one_blob_from_many_at_once(store: BlobStore, tmp_path: Path) -> None:
    blobs = await asyncio.gather(*(store.put(ME, b"same" * 200, "x/y") for _ in range(20)))
    assert len({blob.sha256 for blob in blobs}) == 1
    assert files(tmp_path) == [blobs[0].sha256]
    assert (store._locks, store._uploads) == ({}, {})


async def test_an_upload_that_fell_silent_gives_way(store: BlobStore, clock: FakeClock) -> None:
    gone = Held(b"b" * 900)
    sha256 = named(gone.content)
    first = asyncio.create_task(store.write(ME, sha256, aiter(gone), start=0, total=900, media="x/y"))
    await gone.begun.wait()
    clock.advance(SILENT_S)
    clock.advance(2 * UNUSED_S)
    assert await store.tidy() == 0  # whatever the wall clock says
    second = Held(gone.content)
    second.go.set()
    blob = await store.write(ME, sha256, aiter(second), start=0, total=900, media="x/y")
    assert blob is not None
    with pytest.raises(Cancelled):
        await first
    assert await store.read(ME, sha256) == gone.content


@pytest.mark.parametrize("where", ["_write", "_enter", "make_folder"])
async def test_a_full_disk_leaves_no_pieces_and_the_next_upload_works(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"edgewise.cloud.blobs.{where}", full)
        with pytest.raises(StorageError):
            await store.put(ME, b"full" * 100, "x/y")
        assert where == "_enter" or files(tmp_path) == []
    blob = await store.put(ME, b"full" * 100, "x/y")
    assert files(tmp_path) == [blob.sha256]


async def test_files_are_written_off_the_event_loop_and_an_upload_that_is_cancelled_leaves_none_to_a_thread(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    writing, write_on = threading.Event(), threading.Event()

    def watched(name: str) -> None:
        whole = getattr(blobs, name)

        def work(*arguments: Any, **named: Any) -> Any:
            threads.add(threading.get_ident())
            if name == "_write" and not write_on.is_set():
                writing.set()
                write_on.wait(60)
            return whole(*arguments, **named)

        monkeypatch.setattr(blobs, name, work)

    for name in ("_begin", "_write", "_sync", "_enter", "make_folder"):
        watched(name)
    content = b"c" * 900
    first = asyncio.create_task(store.put(ME, content, "x/y"))
    await asyncio.to_thread(writing.wait, 60)
    first.cancel()
    second = asyncio.create_task(store.put(ME, content, "x/y"))
    await asyncio.sleep(0.01)
    assert not first.done()  # it has the file until the thread is done with it
    write_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    blob = await second
    assert await store.read(ME, blob.sha256) == content
    assert threading.get_ident() not in threads


async def test_a_file_that_somebody_took_away_is_not_there(cloud: Cloud) -> None:
    await cloud.put(SHA, CONTENT)
    (path,) = (cloud.home / "cloud-blobs").glob("*/*")
    path.unlink()
    assert (await cloud.get(PATH)).status_code == 404
    await cloud.put(SHA, CONTENT)
    assert (await cloud.get(PATH)).content == CONTENT


async def test_what_a_crash_left_is_tidied(tmp_path: Path) -> None:
    clock = FakeClock(2_000_000_000.0)
    database = open_jobs(tmp_path / "cloud.db")
    store = BlobStore(database, tmp_path / "cloud-blobs", clock=clock)
    kept = await store.put(ME, b"kept", "text/plain")
    stray = store.path(ME, SHA)
    stray.write_bytes(b"entered never")
    assert await store.tidy() == 1
    assert files(tmp_path) == [kept.sha256]
    database.close()
