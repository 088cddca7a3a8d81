"""Tensor parallelism: each device holds a share of every layer, and sums are exchanged twice a layer.

Query, key, value, gate and up matrices are cut by rows (each device computes some heads and some inner dimensions), the
attention output and down matrices by columns, after which the devices' results are added (Shoeybi et al. 2019,
Megatron-LM). Embedding and output head are cut by tokens of the vocabulary; norms and router are whole on every device. A
model on one device uses `ALONE`.

Sums are in the order of devices, element by element. An all-reduce of a library cuts a batch into one piece for each device
and begins each piece at another one, so that the order in which a row is summed, and its last bit, would depend on its place.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed

from edgewise.kernels.limits import ONE_SHOT_BYTES


class Place(Protocol):
    """A device's place among those that compute a model together.

    Attributes:
        rank: From 0 to size - 1.
        size: Number of devices.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


class Parallel(Place, Protocol):
    """A place from which results are exchanged; every device makes the same calls in the same order."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Add the devices' parts, which are of one shape; every device gets the sum, of the same bits. `part` may be changed."""

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        """The devices' parts, [R, C] each, beside each other on the first device: [R, size * C]. Others get their own back."""


class Alone:
    """One device, which exchanges nothing."""

    rank = 0
    size = 1

    def __repr__(self) -> str:
        return "Alone()"

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        return part


class ProcessGroup:
    """One process for each device, joined by torch.distributed's default group (NCCL, gloo), which may be made later.

    Parts travel as they are and are added in float32. Raises `RuntimeError` where a device is gone.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def __repr__(self) -> str:
        return f"ProcessGroup({self.rank} of {self.size})"

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        flat = part.contiguous().view(-1)
        if self.size == 2 or flat.nbytes <= ONE_SHOT_BYTES:
            return _in_order(self._all(flat)).view(part.shape)
        return self._in_pieces(flat)[: flat.numel()].view(part.shape)

    def columns(self, part: torch.Tensor) -> torch.Tensor:
        own = part.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        torch.distributed.gather(_bytes(own), None if parts is None else [_bytes(one) for one in parts])
        return part if parts is None else torch.cat(parts, dim=1)

    def _in_pieces(self, flat: torch.Tensor) -> torch.Tensor:
        """Each device sums one piece of all parts and sends it to the others: half the bytes, or less, in two exchanges."""
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % self.size))
        received = torch.empty_like(flat)
        torch.distributed.all_to_all_single(_bytes(received), _bytes(flat))
        return self._all(_in_order(received.view(self.size, -1))).view(-1)

    def _all(self, own: torch.Tensor) -> torch.Tensor:
        """[n] -> [size, n]."""
        every = torch.empty((self.size, own.numel()), dtype=own.dtype, device=own.device)
        torch.distributed.all_gather([_bytes(one) for one in every], _bytes(own))
        return every


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """[size, n] -> [n] float32, from the first device's part to the last one's."""
    total = parts[0].float() if parts.dtype != torch.float32 else parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Whatever the type, as both back ends move it."""
    return tensor.view(-1).view(torch.uint8)


ALONE = Alone()
