"""Logits of prompts with media, computed as the engine's runner computes them: ragged batches, pages, rows from the encoder."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from edgewise.engine.encoder_cache import EncoderCache
from edgewise.engine.kv_cache import allocate
from edgewise.engine.networks import describe, load_network
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.senses import Senses
from edgewise.engine.sequence import Sequence
from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.multimodal.layout import Fitted, place
from edgewise.models.multimodal.loading import MultimodalDecoder
from edgewise.models.multimodal.media import Media

Prompt = tuple[list[int], tuple[Media, ...]]
CPU = torch.device("cpu")


class EngineLogits:
    """A model in float32 with float32 pages; its text part on the native kernels beside the reference, which must agree."""

    def __init__(self, files: ModelFiles, num_pages: int = 200) -> None:
        network = describe(files)
        assert isinstance(network, MultimodalConfig)
        loaded = load_network(files, network, device=CPU, dtype=torch.float32, progress=lambda done: None)
        assert isinstance(loaded, MultimodalDecoder)
        loaded.prove_rows()
        self.network = network
        self.encoder = loaded.encoder
        self.cache = EncoderCache(1 << 26, network.text.hidden_size * 4)
        kv = allocate(network, num_pages=num_pages, kv_dtype="float32", dtype="float32", device=CPU)
        self._senses = Senses(loaded.encoder, self.cache, CPU, max_content=1 << 28)
        self._runner = Runner(loaded, kv, CPU)
        self._native = self._on_native_kernels(files, num_pages)
        self._free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(3)).tolist()

    def _on_native_kernels(self, files: ModelFiles, num_pages: int) -> Runner | None:
        if self.network.speaks:
            return None
        loaded = load_network(
            files, self.network, device=CPU, dtype=torch.float32, progress=lambda done: None, native="none"
        )
        pages = allocate(self.network, num_pages=num_pages, kv_dtype="float32", dtype="float32", device=CPU)
        return Runner(loaded, pages, CPU)

    def sequence(self, prompt: Prompt) -> Sequence:
        tokens, media = prompt
        request = GenerateRequest(id="x", prompt=tuple(tokens), sampling=SamplingParams(max_tokens=8), media=media)
        made = Sequence.of(request, arrival=0, now=0.0)
        made.pages = [self._free.pop() for _ in range(-(-len(tokens) // PAGE_TOKENS))]
        return made

    def step(self, *parts: tuple[Sequence, int, int]) -> list[torch.Tensor]:
        """[count, vocab] of tokens [start, start + count) of each sequence, in one batch."""
        work = [Work(sequence, start, count, sample=False) for sequence, start, count in parts]
        rows = self._senses.rows(work)
        logits = self._runner.all_logits(work, rows)
        if self._native is not None:
            native = self._native.all_logits(work, rows)
            assert float((native - logits).abs().max()) <= 1e-4 * float(logits.abs().max())
        return list(torch.split(logits, [count for _, _, count in parts]))

    def whole(self, prompts: Seq[Prompt]) -> list[torch.Tensor]:
        """[tokens, vocab] of each prompt, all in one batch."""
        return self.step(*((self.sequence(prompt), 0, len(prompt[0])) for prompt in prompts))


def interleaved(parts: Seq[list[int] | Fitted], placeholder: int) -> Prompt:
    """Token ids and fitted pictures, in order, as a prompt."""
    tokens: list[int] = []
    media: list[Media] = []
    for part in parts:
        if isinstance(part, Fitted):
            tokens += [placeholder] * sum(one.count for one in part.media)
            media += part.media
        else:
            tokens += part
    return tokens, place(tokens, media, {"image": placeholder, "video": placeholder})
