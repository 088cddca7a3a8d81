"""Memory that one attention call after another uses again, so that no layer pays for fresh pages of the system."""

from __future__ import annotations

import math

import torch


class Scratch:
    """Named buffers that grow to the largest request and stay. Contents are undefined; not for two threads at once."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"Scratch({self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A contiguous tensor of that shape; the next `take` of the same name overwrites it."""
        need = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < need or buffer.device != device:
            buffer = self._buffers[name] = torch.empty(need, dtype=torch.uint8, device=device)
        return buffer[:need].view(dtype).view(shape)
