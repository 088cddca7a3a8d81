"""The threads beside the step loop: what is queued arrives, what does not fit is left out, nothing is ever waited for."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgewise.engine.tiers import folder
from edgewise.engine.tiers import worker as worker_module
from edgewise.engine.tiers.disk import DiskSpec, DiskStore
from edgewise.engine.tiers.worker import DiskWorker

PAGE = 64


def name(index: int) -> bytes:
    return index.to_bytes(32, "big")


def content(index: int) -> memoryview:
    return memoryview(bytes([index]) * PAGE)


def store_in(root: Path, limit: int = 2**20) -> DiskStore:
    key = folder.key_of("d", "c", 16, "")
    spec = DiskSpec(
        root=root, limit=limit, model="m", model_digest="d", numeric_class="c", key=key, page_bytes=PAGE, reserve=0
    )
    return DiskStore(spec, notify=lambda kind, message: None)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Running:
    """A started worker and what it has delivered."""

    def __init__(self, root: Path) -> None:
        self.got: dict[bytes, memoryview] = {}
        self.worker = DiskWorker(store_in(root), page_bytes=PAGE, deliver=self.got.__setitem__)
        self.worker.start()

    def stored(self, *indices: int) -> bool:
        return all(name(index) in self.worker.store for index in indices)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    it = Running(tmp_path)
    yield it
    it.worker.close(120)


def test_pages_put_are_read_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_LINGER_S", 120)  # until the close: however far apart the pages come
    first = Running(tmp_path)
    for index in range(5):
        assert first.worker.put(name(index), content(index))
    assert first.worker.holds(name(4))
    first.worker.close(120)
    assert len(folder.all_files(tmp_path)) == 1  # what comes together lies together
    second = Running(tmp_path)
    chain = [name(index) for index in range(7)]
    assert second.worker.fetch(chain)
    until(lambda: not second.worker.pending(chain))
    assert second.got == {name(index): content(index) for index in range(5)}
    assert not second.worker.fetch([name(9)])
    assert not second.worker.pending([name(9)])
    second.worker.close(120)


def test_a_full_queue_drops_and_counts(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, entered = threading.Event(), threading.Event()
    write = running.worker.store.write

    def slow(pages: list[tuple[bytes, memoryview]]) -> Path | None:
        entered.set()
        assert hold.wait(120)
        return write(pages)

    monkeypatch.setattr(running.worker.store, "write", slow)
    monkeypatch.setattr(running.worker, "_most_queued", 3)
    assert running.worker.put(name(0), content(0))
    assert entered.wait(120)
    assert [running.worker.put(name(index), content(index)) for index in range(1, 6)] == [True] * 3 + [False] * 2
    assert running.worker.store.counts.dropped == 2
    assert "4 pages to write" in repr(running.worker)
    hold.set()
    until(lambda: running.stored(0, 1, 2, 3))


def test_too_many_fetches_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "MAX_FETCHES", 2)
    worker = DiskWorker(store_in(tmp_path), page_bytes=PAGE, deliver=lambda name, content: None)
    assert [worker.fetch([name(index)]) for index in range(3)] == [True, True, False]
    assert worker.pending([name(1)])
    assert not worker.pending([name(2)])


def test_forget_takes_back_a_file_in_the_making(
    running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hold, entered = threading.Event(), threading.Event()
    write = running.worker.store.write

    def slow(pages: list[tuple[bytes, memoryview]]) -> Path | None:
        path = write(pages)
        entered.set()
        assert hold.wait(120)
        return path

    monkeypatch.setattr(running.worker.store, "write", slow)
    running.worker.put(name(0), content(0))
    assert entered.wait(120)
    running.worker.put(name(1), content(1))
    running.worker.forget()
    hold.set()
    until(lambda: not folder.all_files(tmp_path) and not running.worker.holds(name(0)))
    assert not running.worker.holds(name(1))
    monkeypatch.undo()
    running.worker.put(name(2), content(2))
    until(lambda: running.stored(2))


def test_a_fault_of_a_thread_ends_the_tier_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(pages: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(running.worker.store, "write", fault)
    running.worker.put(name(0), content(0))
    until(lambda: not running.worker.put(name(1), content(1)))
    assert not running.worker.fetch([name(0)])
    assert not running.worker.pending([name(0)])


@pytest.mark.parametrize("thread", ["read", "write"])
def test_a_tier_whose_thread_has_failed_says_so_and_asks_for_no_more_pages(
    running: Running, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    told: list[str] = []
    store = running.worker.store
    monkeypatch.setattr(store, "_notify", lambda kind, message: told.append(kind))

    def fault(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store, thread, fault)
    assert running.worker.put(name(0), content(0))
    if thread == "read":
        until(lambda: running.stored(0))
        assert running.worker.fetch([name(0)])
    until(lambda: not store.accepts())
    assert not running.worker.put(name(2), content(2))
    running.worker.close(120)  # the thread has ended: what it told is all
    assert store.off
    assert not running.worker.pending([name(0)])
    assert told == ["disk_cache_off"]


def test_closing_twice_and_before_the_start_of_work_is_harmless(tmp_path: Path) -> None:
    it = Running(tmp_path)
    it.worker.close(120)
    it.worker.close(120)
    assert not it.worker.put(name(0), content(0))
