"""What the library refuses (`Fault` in src/bounds.h), as exceptions that name the field, its limit and what was there."""

from __future__ import annotations

from typing import NoReturn

import torch

from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta

NO_MEMORY = -2


def refuse(
    fault: int,
    *,
    num_pages: int,
    meta: AttentionMeta | None = None,
    slots: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
    vocab: int = 0,
    rope_positions: int = 0,
) -> NoReturn:
    """Say why a call came back with `fault`, which is not 0; nothing was read or written.

    Args:
        fault: What the library returned.
        num_pages: Of the cache; `vocab` and `rope_positions`: of the model.
        meta, slots, tokens: What the call was given.

    Raises:
        MemoryError: There was none.
        ValueError: Anything else.
    """
    if fault == NO_MEMORY:
        raise MemoryError("there is no memory for what the native kernels need beside their results")
    width = 0 if meta is None else meta.block_tables.shape[1]
    table, cache = width * PAGE_TOKENS, num_pages * PAGE_TOKENS
    turned = None if meta is None else meta.positions if meta.rope_positions is None else meta.rope_positions
    reasons = {
        1: f"tokens must be 0 to {vocab - 1}, got {_outside(tokens, vocab)}",
        2: f"positions must lie in the block table of {width} pages, got {_of(meta, 'positions', table)}",
        3: f"query_lens must be positive and add up to the tokens, got {() if meta is None else meta.query_lens}",
        4: "media rows must be tokens of the batch",
        5: f"slots must lie in the cache's {num_pages} pages of {PAGE_TOKENS} tokens, got {_outside(slots, cache)}",
        6: f"block_tables must name pages 0 to {num_pages - 1} within a context, got {_of(meta, 'block_tables', num_pages)}",
        7: f"visible must lie in the block table of {width} pages and in the window, got {_of(meta, 'visible', table)}",
        8: f"positions must lie in the rope table of {rope_positions}, got {_outside(turned, rope_positions)}",
        9: "pages must have the KV heads and head size of the model",
        10: "adapters must be of the batch",
    }
    raise ValueError(reasons[fault])


def _of(meta: AttentionMeta | None, field: str, limit: int) -> str:
    return _outside(None if meta is None else getattr(meta, field), limit)


def _outside(values: torch.Tensor | None, limit: int) -> str:
    """The numbers that are not in [0, limit), the first few."""
    if values is None:
        return "none"
    found = values[(values < 0) | (values >= limit)].tolist()
    return ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
