"""The tiers as one: device pages are copied out when they settle, kept in host memory and on disk, and brought back."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from edgewise.engine.prefix import PageHash
from edgewise.engine.tiering import PageMover
from edgewise.engine.tiers.host import HostCache
from edgewise.engine.tiers.pressure import PressureWatch
from edgewise.engine.tiers.worker import DiskWorker

TICK_BYTES = 4 << 20  # copied out after one step at most: a millisecond or two
_EVICT_BATCH = 8  # pages copied at once when one must go that was not copied yet: its neighbours go next
_DRAIN_S = 1.0
_CLOSE_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """Pages and bytes per tier now; hits, misses, refusals and drops since the start, in pages."""

    host_pages: int = 0
    host_bytes: int = 0
    host_limit_bytes: int = 0
    host_hits: int = 0
    host_misses: int = 0
    disk_pages: int = 0
    disk_bytes: int = 0
    disk_hits: int = 0
    disk_misses: int = 0
    disk_refused: int = 0
    disk_dropped: int = 0
    disk_off: int = 0


class TieredPages:
    """The `PageTiers` over a mover, a host cache and, where there is one, a disk. One thread calls it: the step loop's.

    Args:
        mover: Of the device's pages.
        host: Also the place where pages arrive from disk.
        keep: Whether settled pages are kept in `host`; False where it is only that place.
        disk: Started already; None for no disk tier.
        watch: Shrinks `host` when memory is scarce, started already; stopped by `close`.
        now: Monotonic seconds.
    """

    def __init__(
        self,
        mover: PageMover,
        host: HostCache,
        *,
        keep: bool,
        disk: DiskWorker | None = None,
        watch: PressureWatch | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mover = mover
        self._host = host
        self._keep = keep
        self._disk = disk
        self._watch = watch
        self._now = now
        self._settled: OrderedDict[PageHash, int] = OrderedDict()
        self._on_device: set[PageHash] = set()
        self._per_tick = max(1, TICK_BYTES // mover.page_bytes)
        self._quarantine: set[PageHash] = set()
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        return f"TieredPages({self._host!r}, {self._disk!r}, {len(self._settled)} to copy)"

    # --- bringing pages back ----------------------------------------------------------------------------------------------

    def lookup(self, chain: Sequence[PageHash]) -> int:
        found = self._host.known(chain)
        self._misses += len(chain) - found
        return found

    def prefetch(self, chain: Sequence[PageHash]) -> None:
        if self._disk is None:
            return
        # What the device or the host has needs no reading; more than the host can hold would push out its own beginning.
        first = next((i for i, name in enumerate(chain) if not self._near(name)), len(chain))
        wanted = chain[first : first + self._host.capacity]
        if wanted:
            self._disk.fetch(wanted)

    def pending(self, chain: Sequence[PageHash]) -> bool:
        return self._disk is not None and self._disk.pending(chain)

    def load(self, chain: Sequence[PageHash], pages: Sequence[int]) -> int:
        contents: list[memoryview] = []
        for name in chain:
            content = self._host.get(name)
            if content is None:
                break
            contents.append(content)
        good = len(contents)
        self._mover.restore(pages[:good], contents)
        self._on_device.update(chain[:good])
        self._hits += good
        return good

    def _near(self, name: PageHash) -> bool:
        return name in self._on_device or name in self._host

    # --- pages of others ----------------------------------------------------------------------------------------------------

    def peek(self, name: PageHash) -> memoryview | None:
        """What host memory holds under a name; not a use of it."""
        return self._host.peek(name)

    def receive(self, names: Sequence[PageHash], contents: Sequence[memoryview]) -> int:
        """Keep pages under names of a quarantine: nothing under these is copied to a lower tier. How many there was room for."""
        room = self._host.capacity - len(self._quarantine)
        kept = list(zip(names, contents, strict=True))[: max(0, room)]
        for name, content in kept:
            self._quarantine.add(name)
            self._host.put(name, content)
        return len(kept)

    def rename(self, name: PageHash, new: PageHash | None) -> bool:
        """Out of the quarantine, under another name or forgotten; whether host memory held it."""
        self._quarantine.discard(name)
        self._settled.pop(name, None)
        if name in self._on_device:
            self._on_device.discard(name)
            if new is not None:
                self._on_device.add(new)
        content = self._host.take(name)
        if content is not None and new is not None:
            self._host.put(new, content)
        return content is not None

    # --- keeping pages ----------------------------------------------------------------------------------------------------

    def settled(self, page: int, name: PageHash) -> None:
        self._on_device.add(name)
        if self._wanted(name):
            self._settled[name] = page

    def evicted(self, page: int, name: PageHash) -> None:
        self._on_device.discard(name)
        if self._settled.pop(name, None) is not None:
            others = list(islice(self._settled.items(), _EVICT_BATCH - 1))
            self._copy_out([(name, page), *others])

    def tick(self) -> bool:
        if self._settled:
            self._copy_out(list(islice(self._settled.items(), self._per_tick)))
        return bool(self._settled)

    def _wanted(self, name: PageHash) -> bool:
        if name in self._quarantine:
            return False
        if self._disk is not None and self._disk.holds(name):
            return False
        disk_takes = self._disk is not None and self._disk.store.accepts()
        return disk_takes or (self._keep and name not in self._host)

    def _copy_out(self, items: Sequence[tuple[PageHash, int]]) -> None:
        for name, _ in items:
            self._settled.pop(name, None)
        fresh = [(name, page) for name, page in items if self._wanted(name)]
        for (name, _), content in zip(fresh, self._mover.export([page for _, page in fresh]), strict=True):
            if self._keep:
                self._host.put(name, content)
            if self._disk is not None:
                self._disk.put(name, content)

    # --- the rest ---------------------------------------------------------------------------------------------------------

    def clear(self, tier: str | None = None) -> dict[str, int]:
        """Forget the pages of a tier ("host" or "disk"), or of both; returns their numbers by tier."""
        self._settled.clear()
        if tier in (None, "host"):
            self._quarantine.clear()
        cleared = {}
        if tier in (None, "host"):
            cleared["host"] = self._host.clear()
        if tier in (None, "disk") and self._disk is not None:
            cleared["disk"] = self._disk.forget()
        return cleared

    def stats(self) -> TierStats:
        host = {
            "host_pages": len(self._host),
            "host_bytes": self._host.nbytes,
            "host_limit_bytes": self._host.limit,
            "host_hits": self._hits,
            "host_misses": self._misses,
        }
        if self._disk is None:
            return TierStats(**host)
        store = self._disk.store
        return TierStats(
            **host,
            disk_pages=len(store),
            disk_bytes=store.used_bytes,
            disk_hits=store.counts.hits,
            disk_misses=store.counts.misses,
            disk_refused=store.counts.refused,
            disk_dropped=store.counts.dropped,
            disk_off=int(store.off),
        )

    def close(self) -> None:
        until = self._now() + _DRAIN_S
        while self._settled and self._now() < until:
            self._copy_out(list(islice(self._settled.items(), self._per_tick)))
        if self._watch is not None:
            self._watch.stop()
        if self._disk is not None:
            self._disk.close(_CLOSE_S)
