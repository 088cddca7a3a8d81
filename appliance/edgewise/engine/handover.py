"""Named KV pages for, and from, another appliance: what the step loop does with a `PageOrder`. Torch-free.

Pages of others come in under names of a quarantine that no request but their own proof has (`serving.peers`). The proof is an
ordinary request over all their tokens: it loads every page but the last and computes that one itself, since an engine always
computes the last token. `adopt` then compares the computed page with the one that came, bit for bit. Only if they are equal do
all get their lasting names; otherwise all are forgotten.

What that proves of exact pages: keys and values of the last page depend, from the second layer on, on what attention read from
every page before it. Keys and values of the *last* layer take no part in it; for those stands the digest of the transfer.

Pages that were rounded to 4 bits on their way (`form` "int4") cannot be equal: the last one must only lie near what is computed
over the others, which shows that they belong to these tokens, and not that each of their bits is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgewise.engine.messages import PageForm, PageOrder, PageReply
from edgewise.engine.pages import PagePool
from edgewise.engine.prefix import PageHash
from edgewise.engine.tiering import PageMover, PageRounder
from edgewise.engine.tiers.pages import TieredPages

ORDER_BYTES = 4 << 20
"""Contents that one order moves at most: a millisecond or two of the step loop's time."""
ROUND_BYTES = 512 << 10
"""Likewise of an order that rounds pages, or stores rounded ones: a few pages, whose arithmetic takes some ten milliseconds."""
NEAR = 0.25
"""Largest relative difference of a layer's keys or values at which a rounded page counts as what was computed. Rounding alone
makes about 0.1; a page of other tokens has 1 and more."""
NAME_BYTES = 32
NOT_COMPARED = -1
"""Count of an `adopt` that had nothing to compare: no fault of whoever the pages came from."""


def split_names(packed: bytes) -> list[PageHash]:
    """Raise `ValueError` if they are cut."""
    if len(packed) % NAME_BYTES:
        raise ValueError(f"names of {len(packed)} bytes, no multiple of {NAME_BYTES}")
    return [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]


def pages_of_order(page_bytes: int, form: PageForm) -> int:
    """How many pages one order moves at most, by the bytes of a stored one; one at least."""
    return max(1, (ROUND_BYTES if form == "int4" else ORDER_BYTES) // page_bytes)


class HandOver:
    """Carries orders out, between two steps.

    Args:
        pages: The device's.
        tiers: Where pages of others arrive; None gives pages away, and takes none.
        mover: Of the device's pages.
        rounder: Of pages of the form "int4".
    """

    def __init__(self, pages: PagePool, tiers: TieredPages | None, mover: PageMover, rounder: PageRounder) -> None:
        self._pages = pages
        self._tiers = tiers
        self._mover = mover
        self._rounder = rounder

    def __repr__(self) -> str:
        return f"HandOver({self._pages!r}, {self._tiers!r})"

    def carry_out(self, order: PageOrder) -> PageReply:
        names = split_names(order.names)
        contents: Sequence[memoryview | bytes] = ()
        rounded = order.form == "int4"
        match order.action:
            case "held":
                count = self._held(names)
            case "export":
                stored = self._export(names[: pages_of_order(self._mover.page_bytes, order.form)])
                contents = self._rounder.pack(stored) if rounded else stored
                count = len(contents)
            case "import":
                count = self._import(names, self._rounder.unpack(order.contents) if rounded else order.contents)
            case "adopt":
                count = self._adopt(names, split_names(order.lasting), exact=not rounded)
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
        near = {name: page for name in names if (page := self._pages.find(name)) is not None}
        found = dict(zip(near, self._mover.export(list(near.values())), strict=True))
        contents: list[memoryview] = []
        for name in names:
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

    def _adopt(self, names: Sequence[PageHash], lasting: Sequence[PageHash], *, exact: bool) -> int:
        """All of them under their lasting names, or none: 0 if the last one is not what was computed, -1 if one of the two is
        gone (the room was needed, or the engine is another one by now)."""
        if self._tiers is None or not names or len(lasting) != len(names):
            return NOT_COMPARED
        page, came = self._pages.find(names[-1]), self._tiers.peek(names[-1])
        agree = page is not None and came is not None and self._agree(self._mover.export([page])[0], came, exact=exact)
        if not agree:
            for name in names:
                self._forget(name)
            return NOT_COMPARED if page is None or came is None else 0
        for name, new in zip(names, lasting, strict=True):
            self._pages.rename(name, new)
            self._tiers.rename(name, new)
        return len(names)

    def _agree(self, computed: memoryview, came: memoryview, *, exact: bool) -> bool:
        return computed == came if exact else self._rounder.distance(computed, came) <= NEAR

    def _forget(self, name: PageHash) -> bool:
        known = self._pages.find(name) is not None
        self._pages.rename(name, None)
        return (self._tiers is not None and self._tiers.rename(name, None)) or known
