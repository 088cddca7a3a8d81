"""The Talker: a decoder of codec tokens that reads what the Thinker thought.

Its prompt is the Thinker's prompt and the beginning of its answer: for each token, the sum of the row that went into the
Thinker's first layer and the one that came out of its last (of placeholders, the second alone). One codec token goes in with each
further token of the answer, and when the text has ended, with rows that say so.
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
    """A `models.multimodal.protocol.MultimodalNetwork` but for the encoder: each token comes with a row of the Thinker.

    Args:
        decoder: Its embedding table is that of codec tokens, projected.
        project: From the Thinker's width to the decoder's.
    """

    def __init__(self, config: TalkerConfig, decoder: Decoder, project: Linear) -> None:
        self.config = config
        self.decoder = decoder
        self.logits = decoder.logits
        self._project = project

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, kv: Sequence[KVLayer], meta: AttentionMeta, media: StepMedia | None = None
    ) -> torch.Tensor:
        """See `Decoder.forward`.

        Args:
            tokens: [T] int64, codec tokens; `config.codec_mask` adds nothing to its row.
            media: Rows of the Thinker for all T.
        """
        if media is None or len(media.rows) != len(tokens):
            raise ValueError(f"{len(tokens)} codec tokens need a row of the Thinker each")
        table = self.decoder.parameters.embedding
        codes = table[tokens] * (tokens != self.config.codec_mask)[:, None]
        rows = self._project(media.values.to(self._project.weight)) + codes
        return self.decoder.forward(tokens, kv, meta, StepMedia(media.rows, rows))
