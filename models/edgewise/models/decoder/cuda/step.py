"""What a decoding loop asks of a device: one step of a batch, and the draw."""

from __future__ import annotations

from typing import Protocol

import torch


class DecodeStep(Protocol):
    """M rows, one token each; padding rows have position -1. On CUDA neither method waits for the device, so that both can be
    captured as a graph: launches depend on shapes alone."""

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        *,
        together: bool,
    ) -> torch.Tensor:
        """Compute the rows' tokens and write their keys and values.

        Args:
            tokens: [M] int64, each in [0, vocab); -1 counts as 0.
            positions: [M] int64, in their sequences.
            slots: [M] int64, page * PAGE_TOKENS + offset; -1 for padding.
            table: [M, pages] int32, the pages of each row's sequence.
            together: Whether rows may be successive tokens of one sequence. It changes no bit of a result.

        Returns:
            [M, vocab] float32; undefined in padding rows. The next call may overwrite it.
        """

    def slots(self, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """[M] int64: where the tokens at `positions` [M] int64 are written, by `table` [M, pages]; -1 for padding."""

    def advance(self, positions: torch.Tensor, places: torch.Tensor) -> None:
        """Move rows on by one token, padding rows excepted; [M] int64, changed."""

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        places: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Draw a token for each row, as `kernels.sample` does by these controls.

        Args:
            logits: [M, vocab] float32.
            temperature, min_p: [M] float32; temperature 0 takes the likeliest token.
            seeds, places: [M] int64, of `philox.uniform`; seeds are unsigned.
            out: [M] int64; -1 where no logit was finite.
        """
