"""Which KV page belongs to whom. Lists and counters only; no tensors.

A page is in exactly one of three states:

    free        no content worth keeping
    cached      nobody uses it, its content is known by name, or parked, and may be reused or evicted (least recently used first)
    in use      one or more sequences hold it; it may have a name as well

A named page is immutable. Sequences share only named, full pages, so nobody ever writes to a shared page.

The pages of a preempted sequence may be *parked*: they stay where they are, and only those that somebody else needs are moved to
host memory, at the moment they are overwritten. Taking a place for a small, urgent request thus costs what that request needs,
not what its victim had.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.engine.prefix import PageHash
from edgewise.engine.spill import SpillSpace
from edgewise.engine.tiering import NoTiers, PageTiers

MOVED = -1
"""Stands in `Parked.pages` for a page that is in host memory."""


@dataclass(slots=True, eq=False)
class Parked:
    """The pages of a sequence that does not run.

    Attributes:
        pages: In order; `MOVED` where the content is in host memory.
        contents: Of the pages that have moved, by place in `pages`.
    """

    pages: list[int]
    contents: dict[int, memoryview]


class PagePool:
    """Allocation, sharing and reuse of `num_pages` pages.

    Args:
        num_pages: Pages in the cache, >= 1.
        keep_cached: Keep named pages after their last user has gone (prefix cache). When False nothing is ever shared.
        tiers: Told of named pages that lose their last user, and of those about to be overwritten or forgotten.
        spill: Where parked pages go when they are overwritten.
    """

    def __init__(
        self,
        num_pages: int,
        *,
        keep_cached: bool = True,
        tiers: PageTiers | None = None,
        spill: SpillSpace | None = None,
    ) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}: at least 1 page is needed")
        self.num_pages = num_pages
        self.keeps = keep_cached
        self._tiers: PageTiers = tiers or NoTiers()
        self.spill = spill or SpillSpace()
        # A stack: the page freed last is used first, while it is warm, and untouched memory stays untouched.
        self._free = list(range(num_pages - 1, -1, -1))
        self._users = [0] * num_pages
        self._name: list[PageHash | None] = [None] * num_pages
        self._by_name: dict[PageHash, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._parked: dict[int, list[tuple[Parked, int]]] = {}
        self.returned = 0

    def __repr__(self) -> str:
        return f"PagePool(free={self.free}, cached={self.cached}, in_use={self.in_use}, total={self.num_pages})"

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def in_use(self) -> int:
        return self.num_pages - self.free - self.cached

    @property
    def available(self) -> int:
        """Pages that `allocate` can hand out now, cached ones included."""
        return len(self._free) + len(self._cached)

    def users(self, page: int) -> int:
        return self._users[page]

    # --- taking pages ----------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages for one user, evicting cached ones if needed; None, and nothing changed, if there are not enough."""
        if count > self.available:
            return None
        pages = [self._take() for _ in range(count)]
        if self._parked:
            self._move_out([page for page in pages if page in self._parked])
        for page in pages:
            self._users[page] = 1
        return pages

    def acquire_prefix(self, chain: Sequence[PageHash]) -> list[int]:
        """Add a user to the longest run of known pages that `chain` starts with; returns those pages in order."""
        pages: list[int] = []
        for name in chain:
            page = self._by_name.get(name)
            if page is None:
                break
            self._users[page] += 1
            self._cached.pop(page, None)
            pages.append(page)
        return pages

    def shared_prefix(self, chain: Sequence[PageHash]) -> int:
        """How many pages `acquire_prefix` would find that somebody uses, and that take nothing from `available`."""
        count = 0
        for name in chain:
            page = self._by_name.get(name)
            if page is None:
                break
            count += self._users[page] > 0
        return count

    def name(self, page: int, name: PageHash) -> None:
        """Record what a full page in use holds. If another page has that name already, this one stays private."""
        if not self.keeps or self._name[page] is not None or name in self._by_name:
            return
        self._name[page] = name
        self._by_name[name] = page

    def find(self, name: PageHash) -> int | None:
        """The page that holds what is named so."""
        return self._by_name.get(name)

    def rename(self, name: PageHash, new: PageHash | None) -> None:
        """Give a page another name, or none; none too where another page has `new` already. An unknown name is left alone."""
        page = self._by_name.pop(name, None)
        if page is None:
            return
        self._name[page] = None
        if new is not None and new not in self._by_name:
            self._name[page] = new
            self._by_name[new] = page
        elif page in self._cached and page not in self._parked:
            del self._cached[page]
            self._free.append(page)

    # --- giving them back ------------------------------------------------------------------------------------------------

    def release(self, pages: Sequence[int]) -> None:
        """Drop one user from each page. Later pages of a sequence are evicted before earlier ones, which more prompts share."""
        for page in reversed(pages):
            if self._users[page] <= 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._users[page] -= 1
            if not self._users[page]:
                self._settle(page)
        self.returned += 1

    def drop_cached(self) -> int:
        """Forget all cached content but what is parked; returns the number of pages freed."""
        idle = [page for page in self._cached if page not in self._parked]
        for page in idle:
            del self._cached[page]
            self._forget_name(page)
            self._free.append(page)
        return len(idle)

    # --- parking ---------------------------------------------------------------------------------------------------------

    def park(self, pages: Sequence[int]) -> Parked:
        """Like `release`, but the contents are kept, here or in host memory, until `unpark` or `discard`."""
        parked = Parked(list(pages), {})
        for place, page in enumerate(pages):
            self._parked.setdefault(page, []).append((parked, place))
        self.release(pages)
        return parked

    def unpark(self, parked: Parked) -> None:
        """Add a user to each page that is still here; those that have moved stay `MOVED`."""
        for page in self._unregister(parked):
            self._users[page] += 1
            self._cached.pop(page, None)

    def repark(self, parked: Parked) -> None:
        """Undo `unpark`."""
        here = [(place, page) for place, page in enumerate(parked.pages) if page != MOVED]
        for place, page in here:
            self._parked.setdefault(page, []).append((parked, place))
        self.release([page for _, page in here])

    def discard(self, parked: Parked) -> None:
        """Forget parked contents; named pages stay cached."""
        for page in self._unregister(parked):
            if self._users[page] == 0 and page not in self._parked and self._name[page] is None:
                del self._cached[page]
                self._free.append(page)
        self.returned += 1

    def _unregister(self, parked: Parked) -> list[int]:
        """Pages of `parked` that are still here; they no longer know of it."""
        here = [page for page in parked.pages if page != MOVED]
        for page in here:
            others = [entry for entry in self._parked[page] if entry[0] is not parked]
            if others:
                self._parked[page] = others
            else:
                del self._parked[page]
        return here

    def _move_out(self, pages: list[int]) -> None:
        """Copy parked contents to host memory; the pages are about to be overwritten."""
        if not pages:
            return
        for page, content in zip(pages, self.spill.export(pages), strict=True):
            for parked, place in self._parked.pop(page):
                parked.pages[place] = MOVED
                parked.contents[place] = content

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _settle(self, page: int) -> None:
        """The last user has gone."""
        name = self._name[page]
        if name is None and page not in self._parked:
            self._free.append(page)
            return
        self._cached[page] = None
        if name is not None:
            self._tiers.settled(page, name)

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        page, _ = self._cached.popitem(last=False)
        self._forget_name(page)
        return page

    def _forget_name(self, page: int) -> None:
        name = self._name[page]
        if name is not None:
            self._tiers.evicted(page, name)
            del self._by_name[name]
            self._name[page] = None
