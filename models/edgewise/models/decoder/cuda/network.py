"""A loaded decoder as CUDA computes it: prompts in long passes, answers by a loop on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.linear import measure
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.fused import FusedStep, float_weights
from edgewise.models.decoder.cuda.loop import DecodeLoop
from edgewise.models.decoder.cuda.prompts import PromptPass
from edgewise.models.decoder.model import Decoder


class CudaDecoder:
    """`engine.runner.Network` of a decoder that `support.why_not` has nothing against.

    Tokens of prompts go through `forward`, those of answers through a `DecodeLoop`: which way a token takes, and with it its
    bits, is decided by its place in the sequence alone.
    """

    def __init__(self, loaded: Decoder) -> None:
        self.config: DecoderConfig = loaded.config
        self._loaded = loaded
        self._weights = float_weights(loaded.parameters)
        self._prompts = PromptPass(loaded.config, loaded.parameters, loaded.ropes, loaded.parallel, loaded.rows)

    def __repr__(self) -> str:
        return f"CudaDecoder({self._loaded!r})"

    def prove_rows(self) -> bool:
        """As `Decoder.prove_rows`, for prompts; the kernels of the loop keep rows apart by construction."""
        self._prompts.rows = measure(self._loaded.parameters.matrices())
        return self._prompts.rows.proven

    def loop(self, kv: Sequence[KVLayer], *, max_rows: int, max_pages: int) -> DecodeLoop:
        """What decodes on the pages `kv`; see `DecodeLoop`."""
        loaded = self._loaded
        step = FusedStep(loaded.config, loaded.parameters, loaded.ropes, self._weights, kv)
        return DecodeLoop(step, loaded.device, max_rows=max_rows, max_pages=max_pages)

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta) -> torch.Tensor:
        """As `Decoder.forward`."""
        if meta.visible is not None or meta.rope_positions is not None:
            raise ValueError("prompts with media are computed by the reference alone")
        return self._prompts.hidden(tokens, kv, meta)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `Decoder.logits`."""
        return self._prompts.logits(hidden)
