"""Pages in host memory: least recently used ones go first when the limit is reached. Torch-free, safe between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from edgewise.engine.prefix import PageHash


class HostCache:
    """Named page contents of at most `limit` bytes. A page larger than the limit is not kept.

    Args:
        page_bytes: Bytes of every page.
        limit: Bytes to hold at most.
    """

    def __init__(self, page_bytes: int, limit: int) -> None:
        self.page_bytes = page_bytes
        self._most = limit
        self._limit = limit
        self._pages: OrderedDict[PageHash, memoryview] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"HostCache({len(self)} pages, {self.nbytes} of {self._limit} bytes)"

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, name: PageHash) -> bool:
        return name in self._pages

    @property
    def nbytes(self) -> int:
        return len(self._pages) * self.page_bytes

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def capacity(self) -> int:
        """Pages that fit within the present limit."""
        return self._limit // self.page_bytes

    def put(self, name: PageHash, content: memoryview) -> None:
        """Keep a page as the most recently used one; what it displaces is forgotten."""
        with self._lock:
            self._pages[name] = content
            self._pages.move_to_end(name)
            self._trim()

    def get(self, name: PageHash) -> memoryview | None:
        with self._lock:
            content = self._pages.get(name)
            if content is not None:
                self._pages.move_to_end(name)
            return content

    def peek(self, name: PageHash) -> memoryview | None:
        """As `get`, without a change to who goes first."""
        return self._pages.get(name)

    def take(self, name: PageHash) -> memoryview | None:
        """As `get`, and forget it."""
        with self._lock:
            return self._pages.pop(name, None)

    def known(self, chain: Sequence[PageHash]) -> int:
        """How many names at the start of `chain` are held."""
        with self._lock:
            return next((count for count, name in enumerate(chain) if name not in self._pages), len(chain))

    def shrink(self, excess: int) -> None:
        """Lower the limit so that `excess` bytes of what is held are given back; negative raises it again, to the first
        limit at most."""
        with self._lock:
            now = self.nbytes if excess > 0 else self._limit
            self._limit = max(0, min(self._most, now - excess))
            self._trim()

    def clear(self) -> int:
        """Forget everything; returns the number of pages."""
        with self._lock:
            count = len(self._pages)
            self._pages.clear()
            return count

    def _trim(self) -> None:
        while len(self._pages) * self.page_bytes > self._limit:
            self._pages.popitem(last=False)
