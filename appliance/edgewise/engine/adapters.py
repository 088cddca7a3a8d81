"""Adapters that the engine has in memory: read when a request first asks for one, forgotten when others need the room.

One is read between two steps: a few milliseconds for ten megabytes, in which running streams wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Protocol

import torch

from edgewise.core.errors import OutOfMemory, QueueFull
from edgewise.core.log import get_logger
from edgewise.core.sizes import mib
from edgewise.engine.scheduler import Work
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import read_layout
from edgewise.models.adapters.loading import AdaptedRows, Adapter, adapter_bytes, load_adapter
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.native.adapters import native_adapter_bytes, pack_adapter
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.decoder.parallel import ALONE, Place, ProcessGroup

log = get_logger(__name__)


class AdapterGroup(Protocol):
    """Devices of which each holds a share of every adapter."""

    @property
    def size(self) -> int: ...

    def open_adapter(self, files: AdapterFiles) -> None: ...

    def close_adapter(self, digest: str) -> None: ...


class Adapters:
    """Those of one decoder.

    Args:
        config: Of the whole decoder.
        dtype, device: Of its weights.
        limit_bytes: What all together may take; booked by the caller.
        native: The decoder, where it computes on the native kernels.
        group: The devices that compute the decoder together, told of every adapter that comes or goes.
        together: Devices whose memory `limit_bytes` are of.
    """

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        limit_bytes: int,
        *,
        native: NativeDecoder | None = None,
        group: AdapterGroup | None = None,
        together: int = 1,
    ) -> None:
        self._config = config
        self._native = native
        self._group = group
        self._share: Place = ALONE if group is None else ProcessGroup(0, group.size)
        self._together = together
        self._dtype = dtype
        self._device = device
        self._limit = limit_bytes
        self._held: OrderedDict[str, Adapter] = OrderedDict()

    def __repr__(self) -> str:
        return f"Adapters({len(self._held)} of {self.nbytes} bytes, at most {self._limit})"

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._held.values()) * self._together

    def open(self, files: AdapterFiles, used: Collection[str]) -> Adapter:
        """The adapter, read if need be; the longest unused ones make room, but none whose digest is in `used`.

        Raises:
            OutOfMemory: It is larger than all the room there is.
            QueueFull: Those in use leave no room.
            UnsupportedModel, BadModelFile, StorageError: It cannot be used, by name.
        """
        held = self._held.get(files.digest)
        if held is None:
            self._make_room(files, self._size(files) * self._together, used)
            held = load_adapter(files, self._config, dtype=self._dtype, device=self._device, share=self._share)
            if self._native is not None:
                held = pack_adapter(held, self._native)
            if self._group is not None:
                self._group.open_adapter(files)
            self._held[files.digest] = held
            log.info("adapter_loaded", adapter=files.name, bytes=held.nbytes * self._together)
        self._held.move_to_end(files.digest)
        return held

    def _size(self, files: AdapterFiles) -> int:
        layout = read_layout(files, self._config)
        if self._native is not None:
            return native_adapter_bytes(layout, self._config)
        return adapter_bytes(layout, self._dtype, self._config.shard(self._share.size))

    def _make_room(self, files: AdapterFiles, size: int, used: Collection[str]) -> None:
        if size > self._limit:
            raise OutOfMemory(
                f"The adapter '{files.name}' takes {mib(size)}, and adapters may take {mib(self._limit)}: raise "
                "engine.adapter_bytes."
            )
        for digest in [digest for digest in self._held if digest not in used]:
            if self.nbytes + size <= self._limit:
                return
            log.info("adapter_unloaded", adapter=self._held.pop(digest).name)
            if self._group is not None:
                self._group.close_adapter(digest)
        if self.nbytes + size > self._limit:
            raise QueueFull(
                f"The adapters in use take {mib(self.nbytes)} of {mib(self._limit)}, and '{files.name}' needs {mib(size)}: "
                "try again later, or raise engine.adapter_bytes.",
                retry_after_s=1.0,
            )


def adapted_rows(work: Seq[Work], device: torch.device) -> list[AdaptedRows]:
    """Which tokens of a step are computed with which adapter."""
    rows: dict[Adapter, list[int]] = {}
    first = 0
    for item in work:
        if item.sequence.adapter is not None:
            rows.setdefault(item.sequence.adapter, []).extend(range(first, first + item.count))
        first += item.count
    return [AdaptedRows(adapter, torch.tensor(own, device=device)) for adapter, own in rows.items()]
