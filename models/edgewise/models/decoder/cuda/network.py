"""A decoder as CUDA computes it: prompts in long passes, answers by a loop on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.rows import default_rows
from edgewise.kernels.triton.decode_product import MAX_ROWS
from edgewise.kernels.triton.plan import DEFAULT_PLAN, Plan
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.fused import FusedStep
from edgewise.models.decoder.cuda.loop import DecodeLoop
from edgewise.models.decoder.cuda.products import measure_products
from edgewise.models.decoder.cuda.prompts import PromptPass
from edgewise.models.decoder.cuda.weights import CardWeights


class CudaDecoder:
    """`engine.runner.Network` of a decoder that `support.why_not` has nothing against.

    Tokens of prompts go through `forward`, those of answers through a `DecodeLoop`: which way a token takes, and with it its
    bits, is decided by its place in the sequence alone.
    """

    def __init__(self, weights: CardWeights, plan: Plan = DEFAULT_PLAN) -> None:
        self.config: DecoderConfig = weights.config
        self._plan = plan
        self._weights = weights
        self._prompts = PromptPass(weights, default_rows(weights.dtype))

    def __repr__(self) -> str:
        return f"CudaDecoder({self.config.architecture}, {self.config.num_layers} layers, {self._weights.device})"

    def prove_rows(self) -> bool:
        """As `Decoder.prove_rows`, for prompts; the kernels of the loop keep rows apart by construction."""
        self._prompts.rows = measure_products(self._weights.matrices())
        return self._prompts.rows.proven

    def loop(self, kv: Sequence[KVLayer], *, max_rows: int, max_pages: int) -> DecodeLoop:
        """What decodes on the pages `kv`; see `DecodeLoop`. More rows than a product takes are computed part by part."""
        step = FusedStep(self._weights, kv, self._plan)
        return DecodeLoop(step, self._weights.device, max_rows=min(max_rows, MAX_ROWS), max_pages=max_pages)

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
