"""How much a KV format changes the model's predictions, measured on a real text.

The same weights read the same text twice, once over the format under test and once over float32 pages. At each position the
Kullback-Leibler divergence KL(float32 || format) of the two next-token distributions is taken in float64, and whether both
put the same token first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from edgewise.engine.kv_cache import allocate
from edgewise.engine.prefix import chain_start
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence as EngineSequence
from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.memory import kv_bytes_per_token
from edgewise.models.files import ModelFiles

_ROWS = 128  # positions per step: bounds the logits held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class KVQuality:
    """Figures over all positions. `capacity` is tokens per byte relative to bfloat16 pages, scales counted."""

    kv_dtype: str
    positions: int
    mean_kl: float
    max_kl: float
    agreement: float
    perplexity: float
    perplexity_float32: float
    capacity: float


def kv_divergence(
    files: ModelFiles,
    tokens: Sequence[int],
    *,
    kv_dtype: str = "int8",
    context: int = 2048,
    progress: Callable[[float], None] | None = None,
) -> KVQuality:
    """Read `tokens` in stretches of `context` over float32 pages and over `kv_dtype` pages; float32 weights, CPU.

    Args:
        files: The model.
        tokens: A real text, at least two tokens.
        kv_dtype: The format under test.
        context: Length of a stretch; every position from the second on counts.
        progress: Share done, [0, 1].
    """
    device = torch.device("cpu")
    decoder = load_decoder(files, device=device, dtype=torch.float32)
    decoder.prove_rows()
    config = decoder.config
    context = min(context, config.max_position)
    pages = -(-context // PAGE_TOKENS)
    runners = [
        Runner(decoder, allocate(config, num_pages=pages, kv_dtype=name, device=device), device)
        for name in ("float32", kv_dtype)
    ]
    tally = _Tally()
    for first in range(0, len(tokens), context):
        stretch = _sequence(tokens[first : first + context])
        for start in range(0, len(stretch.tokens), _ROWS):
            count = min(_ROWS, len(stretch.tokens) - start)
            work = [Work(stretch, start, count, sample=True)]
            truth, got = (runner.all_logits(work) for runner in runners)
            tally.add(truth, got, stretch.tokens[start + 1 : start + count + 1])
            if progress is not None:
                progress(min(1.0, (first + start + count) / len(tokens)))
    ratio = kv_bytes_per_token(config, "bfloat16") / kv_bytes_per_token(config, kv_dtype)
    return tally.report(kv_dtype, ratio)


def _sequence(tokens: Sequence[int]) -> EngineSequence:
    request = GenerateRequest(id="quality", prompt=tuple(tokens), sampling=SamplingParams(max_tokens=1))
    return EngineSequence(
        request=request,
        arrival=0,
        added_at=0.0,
        deadline_at=None,
        tokens=list(tokens),
        start=chain_start(""),
        pages=list(range(-(-len(tokens) // PAGE_TOKENS))),
    )


class _Tally:
    """Sums over positions, in float64."""

    def __init__(self) -> None:
        self.positions = 0
        self.scored = 0
        self.kl = 0.0
        self.max_kl = 0.0
        self.agree = 0
        self.loss = 0.0
        self.loss_truth = 0.0

    def add(self, truth: torch.Tensor, got: torch.Tensor, following: Sequence[int]) -> None:
        """[rows, vocab] logits twice, and the tokens that really follow (one fewer at the end of a stretch)."""
        p, q = truth.double().log_softmax(-1), got.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1)
        self.positions += len(kl)
        self.kl += float(kl.sum())
        self.max_kl = max(self.max_kl, float(kl.max()))
        self.agree += int((p.argmax(-1) == q.argmax(-1)).sum())
        rows, ids = torch.arange(len(following)), torch.tensor(following, dtype=torch.int64)
        self.scored += len(following)
        self.loss -= float(q[rows, ids].sum())
        self.loss_truth -= float(p[rows, ids].sum())

    def report(self, kv_dtype: str, capacity: float) -> KVQuality:
        return KVQuality(
            kv_dtype=kv_dtype,
            positions=self.positions,
            mean_kl=self.kl / self.positions,
            max_kl=self.max_kl,
            agreement=self.agree / self.positions,
            perplexity=math.exp(self.loss / self.scored),
            perplexity_float32=math.exp(self.loss_truth / self.scored),
            capacity=capacity,
        )
