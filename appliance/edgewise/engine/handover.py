"""Named KV pages for, and from, another appliance: what the step loop does with a `PageOrder`. Torch-free.

Pages of others come in under names of a quarantine that no request but their own proof has (`serving.peers`). The proof is an
ordinary request over all their tokens: it loads every page but the last and computes that one itself, since an engine always
computes the last token. `adopt` then compares the computed page with the one that came, bit for bit. Only if they are equal do
all get their lasting names; otherwise all are forgotten.

What that proves: keys and values of the last page depend, from the second layer on, on what attention read from every page
before it. Keys and values of the *last* layer take no part in it; for those stands the digest of the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.engine.messages import PageOrder, PageReply
from edgewise.engine.pages import PagePool
from edgewise.engine.prefix import PageHash
from edgewise.engine.tiering import PageMover
from edgewise.engine.tiers.pages import TieredPages

ORDER_BYTES = 4 << 20
"""Contents that one order moves at most: a millisecond or two of the step loop's time."""
NAME_BYTES = 32
NOT_COMPARED = -1
"""Count of an `adopt` that had nothing to compare: no fault of whoever the pages came from."""


def join_names(names: Sequence[PageHash]) -> bytes:
    return b"".join(names)


def split_names(packed: bytes) -> list[PageHash]:
    """Raise `ValueError` if they are cut."""
    if len(packed) % NAME_BYTES:
        raise ValueError(f"names of {len(packed)} bytes, no multiple of {NAME_BYTES}")
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]


class HandOver:
    """Carries orders out, between two steps.

    Args:
        pages: The device's.
        tiers: Where pages of others arrive; None gives pages away, and takes none.
        mover: Of the device's pages.
    """

    def __init__(self, pages: PagePool, tiers: TieredPages | None, mover: PageMover) -> None:
        self._pages = pages
        self._tiers = tiers
        self._mover = mover

    def __repr__(self) -> str:
        return f"HandOver({self._pages!r}, {self._tiers!r})"

    def carry_out(self, order: PageOrder) -> PageReply:
        names = split_names(order.names)
        contents: list[memoryview] = []
        match order.action:
            case "held":
                count = self._held(names)
            case "export":
                contents = self._export(names)
                count = len(contents)
            case "import":
                count = self._import(names, order.contents)
            case "adopt":
                count = self._adopt(names, split_names(order.lasting))
            case "forget":
                count = sum(self._forget(name) for name in names)
        return PageReply(id=order.id, count=count, contents=tuple(bytes(content) for content in contents))

    def _held(self, names: Sequence[PageHash]) -> int:
        """How many at the start of `names` can be exported now; what the disk holds of the others is fetched for next time."""
        held = next((count for count, name in enumerate(names) if not self._has(name)), len(names))
        if self._tiers is not None and held < len(names):
            self._tiers.prefetch(names[held:])
        return held

    def _has(self, name: PageHash) -> bool:
        return self._pages.find(name) is not None or (self._tiers is not None and self._tiers.peek(name) is not None)

    def _export(self, names: Sequence[PageHash]) -> list[memoryview]:
        wanted = names[: max(1, ORDER_BYTES // self._mover.page_bytes)]
        near = {name: page for name in wanted if (page := self._pages.find(name)) is not None}
        found = dict(zip(near, self._mover.export(list(near.values())), strict=True))
        contents: list[memoryview] = []
        for name in wanted:
            content = found.get(name) or (None if self._tiers is None else self._tiers.peek(name))
            if content is None:
                break
            contents.append(content)
        return contents

    def _import(self, names: Sequence[PageHash], contents: Sequence[bytes]) -> int:
        if self._tiers is None or len(names) != len(contents):
            return 0
        if any(len(content) != self._mover.page_bytes for content in contents):
            return 0
        return self._tiers.receive(names, [memoryview(content) for content in contents])

    def _adopt(self, names: Sequence[PageHash], lasting: Sequence[PageHash]) -> int:
        """All of them under their lasting names, or none: 0 if the last one is not what was computed, -1 if one of the two is
        gone (the room was needed, or the engine is another one by now)."""
        if self._tiers is None or not names or len(lasting) != len(names):
            return NOT_COMPARED
        page, came = self._pages.find(names[-1]), self._tiers.peek(names[-1])
        agree = page is not None and came is not None and self._mover.export([page])[0] == came
        if not agree:
            for name in names:
                self._forget(name)
            return NOT_COMPARED if page is None or came is None else 0
        for name, new in zip(names, lasting, strict=True):
            self._pages.rename(name, new)
            self._tiers.rename(name, new)
        return len(names)

    def _forget(self, name: PageHash) -> bool:
        known = self._pages.find(name) is not None
        self._pages.rename(name, None)
        return (self._tiers is not None and self._tiers.rename(name, None)) or known
