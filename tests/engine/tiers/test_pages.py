"""The tiers as the scheduler drives them: whatever the order of events, a page that is loaded has the content of its name."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from edgewise.engine.pages import PagePool
from edgewise.engine.prefix import chain_start, page_hash
from edgewise.engine.tiers import folder
from edgewise.engine.tiers import pages as pages_module
from edgewise.engine.tiers.disk import DiskSpec, DiskStore
from edgewise.engine.tiers.host import HostCache
from edgewise.engine.tiers.pages import TieredPages
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.engine.tiers.worker import DiskWorker

PAGE = 32


class Device:
    """A mover over plain bytes: what each device page holds."""

    page_bytes = PAGE

    def __init__(self, count: int) -> None:
        self.pages = [bytes(PAGE) for _ in range(count)]
        self.exported = 0

    def export(self, pages: Sequence[int]) -> list[memoryview]:
        self.exported += len(pages)
        return [memoryview(self.pages[page]) for page in pages]

    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        for page, content in zip(pages, contents, strict=True):
            self.pages[page] = bytes(content)


def truth(name: bytes) -> bytes:
    return name[:PAGE]


def chain(length: int, text: int = 0) -> list[bytes]:
    names, parent = [], chain_start("")
    for index in range(length):
        parent = page_hash(parent, [text, index])
        names.append(parent)
    return names


def disk_in(root: Path, host: HostCache) -> DiskWorker:
    spec = DiskSpec(
        root=root,
        limit=2**20,
        model="m",
        model_digest="d",
        numeric_class="c",
        key=folder.key_of("d", "c", 16, ""),
        page_bytes=PAGE,
        reserve=0,
    )
    worker = DiskWorker(DiskStore(spec, notify=lambda kind, message: None), page_bytes=PAGE, deliver=host.put)
    worker.start()
    return worker


class Rig:
    """A device of a few pages, a pool over it, and tiers below."""

    def __init__(self, device_pages: int, host_pages: int, root: Path | None = None, *, keep: bool = True) -> None:
        self.device = Device(device_pages)
        self.host = HostCache(PAGE, host_pages * PAGE)
        disk = None if root is None else disk_in(root, self.host)
        self.tiers = TieredPages(self.device, self.host, keep=keep, disk=disk)
        self.pool = PagePool(device_pages, tiers=self.tiers)

    def compute(self, names: Sequence[bytes]) -> int:
        """Take pages for `names` as the scheduler does, settle them; returns how many came from a tier."""
        shared = self.pool.acquire_prefix(names)
        own = self.pool.allocate(len(names) - len(shared))
        assert own is not None
        rest = names[len(shared) :]
        good = self.tiers.load(rest[: self.tiers.lookup(rest)], own[: self.tiers.lookup(rest)])
        for page, name in zip(own[good:], rest[good:], strict=True):
            self.device.pages[page] = truth(name)
        for page, name in zip(shared + own, names, strict=True):
            assert self.device.pages[page] == truth(name)
            self.pool.name(page, name)
        self.pool.release(shared + own)
        return good

    def settle(self) -> None:
        while self.tiers.tick():
            pass


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_pages_pushed_off_the_device_come_back_from_the_host() -> None:
    rig = Rig(device_pages=4, host_pages=20)
    first, second = chain(4, 1), chain(4, 2)
    assert rig.compute(first) == 0
    rig.settle()
    assert rig.compute(second) == 0  # evicts the first
    assert rig.compute(first) == 4
    stats = rig.tiers.stats()
    assert (stats.host_pages, stats.host_bytes, stats.host_hits) == (8, 8 * PAGE, 4)
    assert stats.host_misses > 0


def test_a_page_that_was_not_copied_yet_is_copied_when_it_must_go() -> None:
    rig = Rig(device_pages=4, host_pages=20)
    first = chain(4, 1)
    rig.compute(first)
    assert rig.device.exported == 0
    rig.compute(chain(4, 2))
    assert rig.device.exported == 4
    assert rig.compute(first) == 4


def test_a_tick_copies_a_bounded_number_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "TICK_BYTES", 3 * PAGE)
    rig = Rig(device_pages=8, host_pages=20)
    rig.compute(chain(7))
    assert [rig.tiers.tick(), rig.device.exported] == [True, 3]
    assert [rig.tiers.tick(), rig.device.exported] == [True, 6]
    assert [rig.tiers.tick(), rig.device.exported] == [False, 7]
    rig.compute(chain(7))
    rig.settle()
    assert rig.device.exported == 7


def test_the_disk_outlives_the_process(tmp_path: Path) -> None:
    names = chain(6)
    rig = Rig(8, 0, tmp_path, keep=False)
    rig.compute(names)
    rig.settle()
    rig.tiers.close()
    again = Rig(8, 10, tmp_path, keep=False)
    again.tiers.prefetch(names)
    until(lambda: not again.tiers.pending(names))
    assert again.tiers.lookup(names) == 6
    assert again.compute(names) == 6
    again.settle()
    assert again.device.exported == 0  # it is on disk already
    stats = again.tiers.stats()
    assert (stats.disk_pages, stats.disk_hits, stats.disk_refused) == (6, 6, 0)
    again.tiers.prefetch(names)
    assert not again.tiers.pending(names)  # the device has them
    again.tiers.close()


def test_pages_not_copied_yet_are_written_at_the_end(tmp_path: Path) -> None:
    rig = Rig(8, 0, tmp_path, keep=False)
    until(lambda: rig.tiers._disk is not None and rig.tiers._disk._opened)
    rig.compute(chain(5))
    rig.tiers.close()
    assert len(folder.all_files(tmp_path)) == 1


def test_no_more_is_fetched_than_the_host_holds(tmp_path: Path) -> None:
    names = chain(8)
    rig = Rig(8, 0, tmp_path, keep=False)
    rig.compute(names)
    rig.settle()
    rig.tiers.close()
    small = Rig(8, 3, tmp_path, keep=False)
    small.tiers.prefetch(names)
    until(lambda: not small.tiers.pending(names))
    assert small.compute(names) == 3  # the beginning, not the end
    small.tiers.close()


def test_memory_pressure_shrinks_the_host_tier() -> None:
    excess = [0]
    device = Device(8)
    host = HostCache(PAGE, 8 * PAGE)
    watch = PressureWatch(host, lambda: excess[0], look_s=0.001)
    watch.start()
    tiers = TieredPages(device, host, keep=True, watch=watch)
    pool = PagePool(8, tiers=tiers)
    pages = pool.allocate(6)
    assert pages is not None
    for page, name in zip(pages, chain(6), strict=True):
        pool.name(page, name)
    pool.release(pages)
    tiers.tick()
    assert len(host) == 6
    excess[0] = 2 * PAGE + 1
    until(lambda: len(host) == 0)  # as long as too little is available, more goes
    excess[0] = -8 * PAGE
    until(lambda: tiers.stats().host_limit_bytes == 8 * PAGE)
    tiers.close()
    until(lambda: not watch._thread.is_alive())


def test_clear_forgets_one_tier_or_both(tmp_path: Path) -> None:
    rig = Rig(8, 20, tmp_path)
    rig.compute(chain(5))
    rig.settle()
    until(lambda: rig.tiers.stats().disk_pages == 5)
    assert rig.tiers.clear("host") == {"host": 5}
    assert rig.tiers.stats().disk_pages == 5
    rig.compute(chain(3, 1))
    rig.settle()
    until(lambda: rig.tiers.stats().disk_pages == 8)
    assert rig.tiers.clear() == {"host": 3, "disk": 8}
    assert rig.tiers.lookup(chain(5)) == 0
    rig.tiers.close()


class Tiers(RuleBasedStateMachine):
    """Any order of computing, copying and clearing; `Rig.compute` checks every page's content."""

    texts = Bundle("texts")

    @initialize(device=st.integers(6, 9), host=st.integers(0, 12))
    def start(self, device: int, host: int) -> None:
        self.rig = Rig(device, host)

    @rule(target=texts, text=st.integers(0, 3))
    def text(self, text: int) -> int:
        return text

    @rule(text=texts, length=st.integers(1, 6))
    def compute(self, text: int, length: int) -> None:
        self.rig.compute(chain(length, text))

    @rule()
    def tick(self) -> None:
        self.rig.tiers.tick()

    @rule()
    def drop(self) -> None:
        self.rig.pool.drop_cached()

    @rule()
    def clear(self) -> None:
        self.rig.pool.drop_cached()
        self.rig.tiers.clear()

    @rule(excess=st.integers(-8, 8))
    def press(self, excess: int) -> None:
        self.rig.host.shrink(excess * PAGE)

    @invariant()
    def held(self) -> None:
        if hasattr(self, "rig"):
            host = self.rig.host
            assert host.nbytes <= host.limit
            assert all(bytes(content) == truth(name) for name, content in host._pages.items())


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
