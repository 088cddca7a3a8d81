"""Copies whole KV pages between the device and host memory, bit for bit.

In host memory a page is one contiguous run of bytes: layer after layer its keys, values and, where there are some, scales. A
tensor's page is a multiple of 16 bytes (16 tokens), so everything is moved as 64-bit words and no number format is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edgewise.kernels.paging import KVLayer

STAGING_BYTES = 16 << 20  # of one transfer between device and host; a page larger than this is staged alone
_WORD = torch.int64


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor as [num_pages, words] 64-bit words, and where its words lie in a page."""

    words: torch.Tensor
    first: int
    last: int


class KVPageMover:
    """The `PageMover` of a list of `KVLayer`. Not for two threads at once: calls share the staging buffer.

    On CUDA both directions go through a pinned buffer of at most `STAGING_BYTES` (or one page), so that one transfer carries
    many pages at the link's full speed.
    """

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        self._parts: list[_Part] = []
        at = 0
        for layer in layers:
            for tensor in (layer.k, layer.v, layer.k_scale, layer.v_scale):
                if tensor is not None:
                    words = tensor.view(tensor.shape[0], -1).view(_WORD)
                    self._parts.append(_Part(words, at, at + words.shape[1]))
                    at += words.shape[1]
        self._words = at
        self._layout = tuple(
            f"{tensor.dtype} {tuple(tensor.shape[1:])}"
            for layer in layers
            for tensor in (layer.k, layer.v, layer.k_scale, layer.v_scale)
            if tensor is not None
        )
        self._device = layers[0].k.device
        self._batch = max(1, STAGING_BYTES // self.page_bytes)
        self._staging: tuple[torch.Tensor, torch.Tensor] | None = None

    def __repr__(self) -> str:
        return f"KVPageMover({len(self._parts)} tensors, {self.page_bytes} bytes a page, {self._device})"

    @property
    def layout(self) -> str:
        """What lies where in a page: types and shapes in order."""
        return "; ".join(self._layout)

    @property
    def page_bytes(self) -> int:
        return self._words * _WORD.itemsize

    @torch.inference_mode()
    def export(self, pages: Sequence[int]) -> list[memoryview]:
        """Copies of the pages' contents, `page_bytes` each, every one in memory of its own; complete when this returns."""
        contents: list[memoryview] = []
        for first in range(0, len(pages), self._batch):
            some = pages[first : first + self._batch]
            host, device = self._buffers(len(some))
            index = torch.tensor(some, dtype=torch.int64, device=self._device)
            for part in self._parts:
                device[:, part.first : part.last] = part.words.index_select(0, index)
            if host is not device:
                host.copy_(device)
            contents += [memoryview(row.copy()).cast("B") for row in host.numpy()]
        return contents

    @torch.inference_mode()
    def restore(self, pages: Sequence[int], contents: Sequence[memoryview]) -> None:
        """Write contents back, into the same pages or others.

        Raises:
            ValueError: As many contents as pages are needed, `page_bytes` each, and no page twice. Nothing is changed then.
        """
        if len(pages) != len(contents) or any(content.nbytes != self.page_bytes for content in contents):
            raise ValueError(f"{len(pages)} pages need as many contents of {self.page_bytes} bytes")
        if len(set(pages)) != len(pages):
            raise ValueError(f"a page is to be written twice: {list(pages)}")
        for first in range(0, len(pages), self._batch):
            some = pages[first : first + self._batch]
            host, device = self._buffers(len(some))
            rows = host.numpy()
            for row, content in zip(rows, contents[first:], strict=False):
                row[:] = np.frombuffer(content, dtype=np.int64)
            if host is not device:
                device.copy_(host)
            index = torch.tensor(some, dtype=torch.int64, device=self._device)
            for part in self._parts:
                part.words.index_copy_(0, index, device[:, part.first : part.last])

    def _buffers(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[count, words] in host memory and on the device; one and the same on the CPU."""
        if self._staging is None or self._staging[0].shape[0] < count:
            on_cuda = self._device.type == "cuda"
            host = torch.empty((count, self._words), dtype=_WORD, pin_memory=on_cuda)
            self._staging = (host, torch.empty_like(host, device=self._device) if on_cuda else host)
        host, device = self._staging
        own = host[:count]
        return own, (own if device is host else device[:count])
