"""Plain torch; see `kernels.attention_scores`."""

from __future__ import annotations

import torch

from edgewise.kernels.paging import KVLayer


def scores(
    q: torch.Tensor, kv: KVLayer, pages: torch.Tensor, heads: tuple[int, ...], count: int, scale: float
) -> torch.Tensor:
    """See `kernels.attention_scores.attention_scores`."""
    rows = pages.long()
    found = torch.empty((len(heads), q.shape[0], count), dtype=torch.float32, device=q.device)
    for at, head in enumerate(heads):
        stored = kv.k[:, head]
        if stored.dtype.itemsize == 1:  # bytes can be gathered in any version of torch, fp8 numbers not on every device
            keys = stored.view(torch.uint8).index_select(0, rows).view(stored.dtype).float()
        else:
            keys = stored.index_select(0, rows).float()
        keys = keys.flatten(0, 1)[:count]
        if kv.k_scale is not None:
            keys = keys * kv.k_scale[:, head].index_select(0, rows).flatten()[:count, None]
        torch.matmul(q[:, head].float() * scale, keys.T, out=found[at])
    return found
