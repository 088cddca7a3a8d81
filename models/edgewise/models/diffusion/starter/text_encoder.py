"""The encoder that reads prompts: BERT (Devlin et al. 2019), in the sizes of all-MiniLM-L6-v2 and its tensor names.

Prompts go through one at a time, so a prompt's states do not depend on what is encoded beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

_EPS = 1e-12
_SEGMENT = "embeddings.token_type_embeddings.weight"


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """Of a BERT encoder."""

    vocab: int
    places: int
    width: int
    layers: int
    heads: int
    hidden: int


class _Block(nn.Module):
    """Attention, then a feed-forward part, each normalized after it is added."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mixed, self.mixed_norm = nn.Linear(width, width), nn.LayerNorm(width, _EPS)
        self.up, self.down = nn.Linear(width, sizes.hidden), nn.Linear(sizes.hidden, width)
        self.down_norm = nn.LayerNorm(width, _EPS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, tokens, width] -> the same; `mask` as `scaled_dot_product_attention` takes it."""
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = self.mixed_norm(x + self.mixed(attended))
        result: Tensor = self.down_norm(x + self.down(F.gelu(self.up(x))))
        return result


class TextEncoder(nn.Module):
    """States of a prompt's tokens, and their mean as one unit vector.

    Args:
        sizes: Of the network.
        tokenizer: Adds [CLS] and [SEP] itself, as the tokenizer.json of such models says.
    """

    def __init__(self, sizes: EncoderSizes, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocab, sizes.width)
        self.places = nn.Embedding(sizes.places, sizes.width)
        self.segment = nn.Parameter(torch.zeros(sizes.width))
        self.norm = nn.LayerNorm(sizes.width, _EPS)
        self.blocks = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()

    def ids(self, prompts: Sequence[str], most: int) -> list[list[int]]:
        """Tokens of each prompt, at most `most`; a longer prompt loses its end and keeps [SEP]."""
        self._tokenizer.enable_truncation(most)
        return [list(found.ids) for found in self._tokenizer.encode_batch(list(prompts))]

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """States of the last layer.

        Args:
            ids: [batch, tokens].
            mask: [batch, tokens] bool, where there is a token; None where all are.

        Returns:
            [batch, tokens, width]; anything where there is no token.
        """
        x: Tensor = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]] + self.segment)
        seen = None if mask is None else mask[:, None, None]
        for block in self.blocks:
            x = block(x, seen)
        return x

    def encode(self, prompt: str, most: int) -> tuple[Tensor, Tensor]:
        """The states [tokens, width] of at most `most` tokens, and the sentence vector [width] of sentence-transformers."""
        states = self.forward(torch.tensor(self.ids([prompt], most), device=self.segment.device))[0]
        return states, F.normalize(states.mean(0), dim=0)


def stored_names(layers: int) -> dict[str, str]:
    """Our parameter -> its name in the files of such models. `segment` is row 0 of a table, the rest is equal in shape."""
    names = {
        "words.weight": "embeddings.word_embeddings.weight",
        "places.weight": "embeddings.position_embeddings.weight",
        "segment": _SEGMENT,
        "norm": "embeddings.LayerNorm",
    }
    parts = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "mixed": "attention.output.dense",
        "mixed_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "down_norm": "output.LayerNorm",
    }
    for layer in range(layers):
        names |= {f"blocks.{layer}.{ours}": f"encoder.layer.{layer}.{theirs}" for ours, theirs in parts.items()}
    whole = ("words.weight", "places.weight", "segment")
    return {k: v for k, v in names.items() if k in whole} | {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in names.items()
        if ours not in whole
        for kind in ("weight", "bias")
    }
