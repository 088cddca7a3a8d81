"""What a Whisper writes for encoded sound when it takes the likeliest token each time, without times and without an engine.

For judging what an encoder's states are good for; a service's text comes from its engine (`pipeline.transcribe`).
"""

from __future__ import annotations

import torch

from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.multimodal.protocol import StepMedia
from edgewise.models.whisper.config import WhisperTokens
from edgewise.models.whisper.network import WhisperNetwork


@torch.inference_mode()
def greedy_text(network: WhisperNetwork, tokens: WhisperTokens, states: torch.Tensor) -> list[int]:
    """Ids of the words, the end token left out; at most half of what the model can hold, as in training.

    Args:
        states: [frames, width] of one window.
    """
    writing = _Writing(network)
    writing.hear(states)
    head = [tokens.start]
    if tokens.multilingual:
        found = writing.step(head)
        language = max(tokens.languages.values(), key=lambda id: float(found[id]))
        assert tokens.transcribe is not None
        head = [language, tokens.transcribe]
    logits = writing.step([*head, tokens.no_times])
    never = [*tokens.suppressed, *range(tokens.end + 1, network.config.vocab_size)]
    logits[list(tokens.suppressed_first)] = -torch.inf
    text: list[int] = []
    while len(text) < network.config.max_text // 2:
        logits[never] = -torch.inf
        token = int(logits.argmax())
        if token == tokens.end:
            break
        text.append(token)
        logits = writing.step([token])
    return text


class _Writing:
    """Pages of one sequence."""

    def __init__(self, network: WhisperNetwork) -> None:
        config = network.config
        pages = -(-(config.audio_tokens + config.max_text) // PAGE_TOKENS)
        shape = (pages, config.decoder_heads, PAGE_TOKENS, config.head_dim)
        self._network = network
        self._kv = [KVLayer(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.decoder_layers)]
        self._table = torch.arange(pages, dtype=torch.int32)
        self._at = 0

    def hear(self, states: torch.Tensor) -> None:
        """Keys and values of the sound, in all layers."""
        count = self._network.config.audio_tokens
        rows = torch.nn.functional.pad(states, (0, 0, 0, count - states.shape[0]))
        self._forward([0] * count, StepMedia(torch.arange(count), rows))

    def step(self, tokens: list[int]) -> torch.Tensor:
        """[vocab] logits after these."""
        return self._network.logits(self._forward(tokens, None)[-1:])[0].clone()

    def _forward(self, tokens: list[int], media: StepMedia | None) -> torch.Tensor:
        positions = torch.arange(self._at, self._at + len(tokens))
        self._at += len(tokens)
        meta = AttentionMeta(
            query_lens=(len(tokens),),
            context_lens=(self._at,),
            positions=positions,
            slots=positions,
            block_tables=self._table[None],
        )
        return self._network.forward(torch.tensor(tokens), self._kv, meta, media)
