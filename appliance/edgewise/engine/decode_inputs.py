"""The tensors of a step that only decodes, one token for each sequence, kept from step to step.

A step's own Python runs with caches that the weights have just gone through, so what it touches counts: here one row of numbers a
sequence, and of the block table only what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from edgewise.engine.scheduler import Work
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta


def is_plain(work: Seq[Work]) -> bool:
    """Whether every item is one token of text whose successor is drawn, without guesses and adapters."""
    return all(
        item.count == 1
        and item.sample
        and not item.proposed
        and item.sequence.adapter is None
        and item.start >= item.sequence.spans.end
        for item in work
    ) and not any(item.sequence.spans.three for item in work)


class DecodeInputs:
    """On the CPU. What `of` returns holds until its next call: the network must have been through with it."""

    def __init__(self) -> None:
        self._numbers = np.zeros((3, 0), dtype=np.int64)  # tokens, positions, slots
        self._tables = np.zeros((0, 0), dtype=np.int32)
        self._known: list[list[int]] = []
        self._views: tuple[torch.Tensor, ...] = ()
        self._ones: tuple[int, ...] = ()

    def of(self, work: Seq[Work]) -> tuple[torch.Tensor, AttentionMeta]:
        """Tokens [B] int64 and the layout of `work`, which `is_plain`."""
        width = max(len(item.sequence.pages) for item in work)
        if self._tables.shape != (len(work), width):
            self._shape(len(work), width)
        starts = [item.start for item in work]
        for row, item in enumerate(work):
            self._table(row, item.sequence.pages)
        self._numbers[0] = [item.sequence.tokens[item.start] for item in work]
        self._numbers[1] = starts
        self._numbers[2] = [
            item.sequence.pages[item.start // PAGE_TOKENS] * PAGE_TOKENS + item.start % PAGE_TOKENS for item in work
        ]
        tokens, positions, slots, tables = self._views
        return tokens, AttentionMeta(
            query_lens=self._ones,
            context_lens=tuple([start + 1 for start in starts]),
            positions=positions,
            slots=slots,
            block_tables=tables,
        )

    def _shape(self, rows: int, width: int) -> None:
        self._numbers = np.zeros((3, rows), dtype=np.int64)
        self._tables = np.zeros((rows, width), dtype=np.int32)
        self._known = [[] for _ in range(rows)]
        self._views = (*map(torch.from_numpy, self._numbers), torch.from_numpy(self._tables))
        self._ones = (1,) * rows

    def _table(self, row: int, pages: list[int]) -> None:
        if pages != self._known[row]:
            self._tables[row, : len(pages)] = pages
            self._tables[row, len(pages) :] = 0
            self._known[row] = pages.copy()
