"""A decoder on the native kernels, with the interface of `models.decoder.model.Decoder`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.native.adapters import PackedAdapter
from edgewise.kernels.native.step import DecoderStep
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.models.adapters.loading import AdaptedRows
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.multimodal.protocol import StepMedia


class NativeDecoder:
    """A loaded model whose forward pass is one call, on the threads of the process's native pool.

    States between the products are float32; integer products round their input to int8 in groups of 32. A token's result has the
    same bits whatever else is in the batch, however its prompt was cut into chunks, after a prefix-cache hit, and on any
    number of threads, by construction.

    Not for two threads at once, of any decoders: they share the pool.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, config: DecoderConfig, step: DecoderStep, quantize: Quantize) -> None:
        self.config = config
        self.quantize = quantize
        self.step = step

    def __repr__(self) -> str:
        return f"NativeDecoder({self.config.architecture}, {self.config.num_layers} layers, quantize {self.quantize})"

    def prove_rows(self) -> bool:
        """True: every output is computed by one thread, in an order of its own row's alone."""
        return True

    def forward(
        self,
        tokens: torch.Tensor,
        kv: Sequence[KVLayer],
        meta: AttentionMeta,
        media: StepMedia | None = None,
        adapted: Sequence[AdaptedRows] = (),
    ) -> torch.Tensor:
        """As `Decoder.forward`; [T, hidden] float32.

        Raises:
            ValueError: `tokens`, `kv` and `meta` do not agree, or lie outside the vocabulary or the pages; or adapters are none
                that `adapters.pack_adapter` made for this decoder.
        """
        rows = None if media is None else (media.rows.contiguous(), media.values.float().contiguous())
        return self.step.forward(tokens, kv, meta, rows, [(_packed(one), one.rows) for one in adapted])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] of `forward` -> [R, vocab] float32."""
        return self.step.logits(hidden.contiguous())


def _packed(one: AdaptedRows) -> PackedAdapter:
    packed = getattr(one.adapter, "packed", None)
    if not isinstance(packed, PackedAdapter):
        raise ValueError(f"the adapter '{one.adapter.name}' is not packed for native kernels")
    return packed
