"""Which pages may be given away: those of prompts whose label allowed it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from edgewise.engine.prefix import PageHash

MOST_NAMES = 65_536
"""A million tokens; about 10 MB."""


class ShownPages:
    """Names by model and tenant, of prompts that were asked here with a label that lets them leave the device. The oldest go
    first. Kept in memory only: a service that has just started gives nothing away.

    A tenant's names are looked up among its own alone, whatever it sends.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._names: OrderedDict[tuple[str, str, PageHash], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, digest: str, salt: str, chain: Sequence[PageHash]) -> None:
        """A prompt was asked. Its later pages are forgotten before its earlier ones, which more prompts share."""
        for name in reversed(chain) if self._most else ():
            row = (digest, salt, name)
            self._names[row] = None
            self._names.move_to_end(row)
        while len(self._names) > self._most:
            self._names.popitem(last=False)

    def known(self, digest: str, salt: str, names: Sequence[PageHash]) -> int:
        """How many of `names`, from the first on, are this tenant's."""
        return next((count for count, name in enumerate(names) if (digest, salt, name) not in self._names), len(names))
