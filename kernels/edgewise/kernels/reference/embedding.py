from __future__ import annotations

import torch


def embedding(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, tokens).float()
