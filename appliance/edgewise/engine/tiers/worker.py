"""Two threads between the step loop and the disk: one reads what waiting requests may need, one writes behind. Torch-free.

Neither is ever waited for. What does not fit into a queue is left out and counted: it is only a cache.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from edgewise.core.log import get_logger
from edgewise.engine.prefix import PageHash
from edgewise.engine.tiers.disk import DiskStore
from edgewise.engine.tiers.run_file import MAX_PAGES

QUEUE_BYTES = 64 << 20  # contents that wait to be written
RUN_BYTES = 32 << 20  # of one file
MAX_FETCHES = 256
_LINGER_S = 0.1  # pages that settle together arrive over some steps and belong into one file

log = get_logger(__name__)

Page = tuple[PageHash, memoryview]


class DiskWorker:
    """Reads and writes a `DiskStore` on threads of its own, from `start` to `close`.

    Args:
        store: Opened by the reading thread: requests that come meanwhile wait in its queue.
        page_bytes: Bytes of a page.
        deliver: Gets each page that was read, on the reading thread.
    """

    def __init__(self, store: DiskStore, *, page_bytes: int, deliver: Callable[[PageHash, memoryview], None]) -> None:
        self.store = store
        self._deliver = deliver
        self._most_queued = max(4, QUEUE_BYTES // page_bytes)
        self._run_pages = min(MAX_PAGES, max(1, min(RUN_BYTES, store.limit // 4) // page_bytes))
        self._changed = threading.Condition()
        self._fetches: deque[tuple[PageHash, ...]] = deque()
        self._coming: set[PageHash] = set()
        self._writes: dict[PageHash, memoryview] = {}
        self._writing: frozenset[PageHash] = frozenset()
        self._generation = 0
        self._opened = False
        self._closing = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for work, name in ((self._read_loop, "kv-disk-read"), (self._write_loop, "kv-disk-write"))
        ]

    def __repr__(self) -> str:
        writes = len(self._writes) + len(self._writing)
        return f"DiskWorker({self.store!r}, {len(self._fetches)} fetches, {writes} pages to write)"

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, bound_s: float) -> None:
        """Write what is queued, for `bound_s` at most, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + bound_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- called by the step loop ------------------------------------------------------------------------------------------

    def fetch(self, chain: Sequence[PageHash]) -> bool:
        """Read what the disk has of `chain`, in order; False if too many fetches are queued or there is nothing to read."""
        wanted = tuple(chain[: self.store.known(chain)] if self._opened else chain)
        self.store.counts.misses += len(chain) - len(wanted)
        with self._changed:
            if not wanted or len(self._fetches) >= MAX_FETCHES or self._closing:
                return False
            self._fetches.append(wanted)
            self._coming.update(wanted)
            self._changed.notify_all()
        return True

    def pending(self, chain: Sequence[PageHash]) -> bool:
        """Whether part of `chain` is being read or is queued for it."""
        if not self._coming:
            return False
        with self._changed:
            return any(name in self._coming for name in chain)

    def holds(self, name: PageHash) -> bool:
        """Whether a page is on disk or on its way there."""
        return name in self.store or name in self._writes or name in self._writing

    def put(self, name: PageHash, content: memoryview) -> bool:
        """Queue a page to be written; False, and counted, where the queue is full or the disk refuses at present."""
        with self._changed:
            if len(self._writes) >= self._most_queued or not self.store.accepts() or self._closing:
                self.store.counts.dropped += 1
                return False
            self._writes[name] = content
            self._changed.notify_all()
        return True

    def forget(self) -> int:
        """Drop the index and all that is queued; a file in the making is taken back. The folder is the caller's business."""
        with self._changed:
            self._generation += 1
            self._writes.clear()
            return self.store.forget_all()

    # --- the threads ------------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # outermost frame of a thread: the engine goes on without the disk
            log.exception("disk_cache_thread_failed", thread=threading.current_thread().name)
            self.store.give_up(error)
            with self._changed:
                self._opened = self._closing = True
                self._coming.clear()
                self._writes.clear()
                self._writing = frozenset()
                self._changed.notify_all()

    def _read_loop(self) -> None:
        self.store.open()
        with self._changed:
            self._opened = True
            self._changed.notify_all()
        while (chain := self._next_fetch()) is not None:
            generation = self._generation

            def deliver(name: PageHash, content: memoryview, at: int = generation) -> None:
                if at == self._generation:
                    self._deliver(name, content)

            self.store.read(chain, deliver)
            with self._changed:
                self._coming.difference_update(chain)
                self._coming.update(name for queued in self._fetches for name in queued)

    def _next_fetch(self) -> tuple[PageHash, ...] | None:
        with self._changed:
            while not self._fetches and not self._closing:
                self._changed.wait()
            return None if self._closing else self._fetches.popleft()

    def _write_loop(self) -> None:
        while (batch := self._next_batch()) is not None:
            generation, pages = batch
            path = self.store.write(pages)
            with self._changed:
                self._writing = frozenset()
                stale = generation != self._generation
            if stale and path is not None:
                self.store.discard(path)

    def _next_batch(self) -> tuple[int, list[Page]] | None:
        """Pages for one file; waits for more to come for a moment. None when closing and all is written."""
        with self._changed:
            while not (self._opened and (self._writes or self._closing)):
                self._changed.wait()
            until = time.monotonic() + _LINGER_S
            while len(self._writes) < self._run_pages and not self._closing:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if not self._writes:
                return None if self._closing else (self._generation, [])
            names = list(self._writes)[: self._run_pages]
            self._writing = frozenset(names)
            return self._generation, [(name, self._writes.pop(name)) for name in names]
