from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses

from edgewise.kernels.rows import Rows


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: Rows) -> torch.Tensor:
    """Padding is cut off again."""
    count, padded = x.shape[0], rows.padded(x.shape[0])
    x = x.contiguous() if padded == count else F.pad(x, (0, 0, 0, padded - count))
    if rows.tile is None or padded == rows.tile:
        return F.linear(x, weight, bias)[:count]
    tiles = range(0, padded, rows.tile)
    return torch.cat([F.linear(x[first : first + rows.tile], weight, bias) for first in tiles])[:count]
