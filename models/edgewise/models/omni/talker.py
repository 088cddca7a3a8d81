"""The Talker: a decoder of codec tokens that reads what the Thinker thought.

Its prompt is the Thinker's prompt and answer so far: for each token, the sum of the row that went into the Thinker's first layer
and the one that came out of its last (of placeholders, the second alone). One codec token goes with each further token of the
answer, and goes on when the text has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.models.decoder.model import Decoder
from edgewise.models.multimodal.protocol import StepMedia
from edgewise.models.multimodal.towers.weights import Linear
from edgewise.models.omni.config import TalkerConfig


class Talker:
    """Args:
    decoder: Its embedding table is that of codec tokens, projected.
    project: From the Thinker's width to the decoder's.
    """

    def __init__(self, config: TalkerConfig, decoder: Decoder, project: Linear) -> None:
        self.config = config
        self.decoder = decoder
        self._project = project

    @torch.inference_mode()
    def forward(
        self, codes: torch.Tensor, thoughts: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta
    ) -> torch.Tensor:
        """One step.

        Args:
            codes: [T] int64, the codec token that goes in with each row; -1 for none.
            thoughts: [T, width], rows of the Thinker.

        Returns:
            [T, vocab] float32: logits.
        """
        rows = self._project(thoughts.to(self._project.weight))
        spoken = codes >= 0
        rows[spoken] += self.decoder.parameters.embedding[codes[spoken]].to(rows.dtype)
        every = torch.arange(len(codes), device=codes.device)
        hidden = self.decoder.forward(codes.clamp(min=0), kv, meta, StepMedia(every, rows))
        return self.decoder.logits(hidden)
