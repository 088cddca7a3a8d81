"""Which KV page belongs to whom. Lists and counters only; no tensors.

A page is in exactly one of three states:

    free        no content worth keeping
    cached      nobody uses it, its content is known by name and may be reused or evicted (least recently used first)
    in use      one or more sequences hold it; it may have a name as well

A named page is immutable. Sequences share only named, full pages, so nobody ever writes to a shared page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from edgewise.engine.prefix import PageHash
from edgewise.engine.tiering import NoTiers, PageTiers


class PagePool:
    """Allocation, sharing and reuse of `num_pages` pages.

    Args:
        num_pages: Pages in the cache, >= 1.
        keep_cached: Keep named pages after their last user has gone (prefix cache). When False nothing is ever shared.
        tiers: Told of named pages that lose their last user, and of those about to be overwritten or forgotten.
    """

    def __init__(self, num_pages: int, *, keep_cached: bool = True, tiers: PageTiers | None = None) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}: at least 1 page is needed")
        self.num_pages = num_pages
        self._keep_cached = keep_cached
        self._tiers: PageTiers = tiers or NoTiers()
        # A stack: the page freed last is used first, while it is warm, and untouched memory stays untouched.
        self._free = list(range(num_pages - 1, -1, -1))
        self._users = [0] * num_pages
        self._name: list[PageHash | None] = [None] * num_pages
        self._by_name: dict[PageHash, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

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

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages for one user, evicting cached ones if needed; None, and nothing changed, if there are not enough."""
        if count > self.available:
            return None
        pages = [self._take() for _ in range(count)]
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

    def name(self, page: int, name: PageHash) -> None:
        """Record what a full page in use holds. If another page has that name already, this one stays private."""
        if not self._keep_cached or self._name[page] is not None or name in self._by_name:
            return
        self._name[page] = name
        self._by_name[name] = page

    def release(self, pages: Sequence[int]) -> None:
        """Drop one user from each page. Later pages of a sequence are evicted before earlier ones, which more prompts share."""
        for page in reversed(pages):
            if self._users[page] <= 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._users[page] -= 1
            if self._users[page]:
                continue
            name = self._name[page]
            if name is None:
                self._free.append(page)
            else:
                self._cached[page] = None
                self._tiers.settled(page, name)

    def drop_cached(self) -> int:
        """Forget all cached content; returns the number of pages freed."""
        dropped = len(self._cached)
        while self._cached:
            self._free.append(self._evict())
        return dropped

    def _take(self) -> int:
        return self._free.pop() if self._free else self._evict()

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        name = self._name[page]
        if name is not None:
            self._tiers.evicted(page, name)
            del self._by_name[name]
        self._name[page] = None
        return page
