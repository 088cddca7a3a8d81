"""Whole KV pages of several devices: what lies in host memory or on disk of a page holds every device's heads.

A page is one contiguous run of bytes, the first device's part before the second one's. Devices that hold the same KV heads hold
the same bytes: of those the first one's are kept, and all get them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from edgewise.engine.devices.group import DeviceGroup
from edgewise.engine.devices.messages import Contents, Export, Restore
from edgewise.engine.tiers.int4 import Int4Pages
from edgewise.engine.tiers.mover import STAGING_BYTES, KVPageMover
from edgewise.kernels.paging import KVLayer
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.kv_formats import NetworkConfig


def movers(kv: list[KVLayer], share: NetworkConfig, group: DeviceGroup | None) -> tuple[AnyPageMover, Int4Pages]:
    """What moves whole pages, and what rounds them for their way to another appliance.

    Args:
        kv: Of this process's device.
        share: What it computes.
        group: All devices; None for one alone.
    """
    if group is None:
        return KVPageMover(kv), Int4Pages(kv)
    replicas = share.kv_replicas if isinstance(share, DecoderConfig) else 1
    return SharedPageMover(KVPageMover(kv), group, replicas), Int4Pages(kv * (group.size // replicas))


class SharedPageMover:
    """The `PageMover` of a group; `own` is the leader's. Not for two threads at once."""

    def __init__(self, own: KVPageMover, group: DeviceGroup, replicas: int) -> None:
        self._own = own
        self._group = group
        self._replicas = replicas
        self._parts = group.size // replicas
        self._batch = max(1, STAGING_BYTES // own.page_bytes)

    def __repr__(self) -> str:
        return f"SharedPageMover({self._own!r}, {self._parts} parts)"

    @property
    def layout(self) -> str:
        return f"{self._parts} devices; {self._own.layout}"

    @property
    def page_bytes(self) -> int:
        return self._own.page_bytes * self._parts

    def export(self, pages: Sequence[int]) -> list[memoryview]:
        """As `KVPageMover.export`."""
        contents: list[memoryview] = []
        for first in range(0, len(pages), self._batch):
            some = tuple(pages[first : first + self._batch])
            holders = [rank * self._replicas for rank in range(1, self._parts)]
            for rank in holders:
                self._group.tell(rank, Export(pages=some))
            size = self._own.page_bytes
            rows = np.empty((len(some), self._parts, size), dtype=np.uint8)
            for row, content in zip(rows, self._own.export(some), strict=True):
                row[0] = np.frombuffer(content, dtype=np.uint8)
            for place, rank in enumerate(holders, start=1):
                packed = self._group.answer(rank, Contents).contents
                rows[:, place] = np.frombuffer(packed, dtype=np.uint8).reshape(len(some), size)
            contents += [memoryview(row.reshape(-1).copy()).cast("B") for row in rows]
        return contents

    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        """As `KVPageMover.restore`."""
        if len(pages) != len(contents) or any(content.nbytes != self.page_bytes for content in contents):
            raise ValueError(f"{len(pages)} pages need as many contents of {self.page_bytes} bytes")
        if len(set(pages)) != len(pages):
            raise ValueError(f"a page is to be written twice: {list(pages)}")
        size = self._own.page_bytes
        for first in range(0, len(pages), self._batch):
            some = tuple(pages[first : first + self._batch])
            of_some = contents[first : first + len(some)]
            for rank in range(1, self._group.size):
                begin = rank // self._replicas * size
                packed = b"".join(content[begin : begin + size] for content in of_some)
                self._group.tell(rank, Restore(pages=some, contents=packed))
            self._own.restore(some, [content[:size] for content in of_some])


AnyPageMover: TypeAlias = KVPageMover | SharedPageMover
