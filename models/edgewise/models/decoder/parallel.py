"""Tensor parallelism: each device holds a share of every layer, and sums are exchanged twice a layer.

Query, key, value, gate and up matrices are cut by rows (each device computes some heads and some inner dimensions), the
attention output and down matrices by columns, after which the devices' results are added (Shoeybi et al. 2019,
Megatron-LM). Embeddings, norms, router and output head are whole on every device. A model on one device uses `ALONE`.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed


class Parallel(Protocol):
    """A device's place among those that compute a model together.

    Attributes:
        rank: From 0 to size - 1.
        size: Number of devices.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Add the devices' parts, which are of one shape; every device gets the sum. `part` may be changed."""


class Alone:
    """One device, which exchanges nothing."""

    rank = 0
    size = 1

    def __repr__(self) -> str:
        return "Alone()"

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part


class ProcessGroup:
    """One process for each device, joined by torch.distributed (NCCL, gloo); sums are exchanged in float32."""

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)

    def __repr__(self) -> str:
        return f"ProcessGroup({self.rank} of {self.size})"

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        total = part.float()
        torch.distributed.all_reduce(total, group=self._group)
        return total


ALONE = Alone()
