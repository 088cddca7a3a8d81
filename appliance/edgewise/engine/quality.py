"""How much a format of KV pages or weights changes a model's predictions, measured on a real text.

Two runs of the same model read the same text, one of them with float32 weights and float32 pages. At each position the
Kullback-Leibler divergence KL(float32 || format) of the two next-token distributions is taken in float64, and whether both
put the same token first. The needle test hides a fact in a long prompt and looks whether the model repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from edgewise.engine.kv_cache import allocate
from edgewise.engine.networks import LoadedNetwork, describe, load_network
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence as EngineSequence
from edgewise.engine.tiers.int4 import Int4Pages
from edgewise.engine.tiers.mover import KVPageMover
from edgewise.kernels.paging import PAGE_TOKENS
from edgewise.models.decoder.kv_formats import NetworkConfig
from edgewise.models.decoder.memory import kv_bytes_per_token
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.rounded import RoundedDecoder, RoundedFormat
from edgewise.models.files import ModelFiles

ROWS = 128
"""Positions per step: bounds the logits held at once."""

_CPU = torch.device("cpu")

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Figures over all positions; KL in nats."""

    positions: int
    mean_kl: float
    max_kl: float
    agreement: float
    perplexity: float
    perplexity_float32: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KVQuality(Divergence):
    """Of a KV format. `capacity` is tokens per byte relative to bfloat16 pages, scales counted."""

    kv_dtype: str
    capacity: float


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`round` rounds the full pages of the first `tokens` tokens, `spared` is how many times fewer bytes they are."""

    round: Callable[[int], None]
    spared: float


class Reader:
    """A model with weights in one format, on the CPU, reading over pages in another.

    Args:
        files: The model.
        dtype: Of the weights.
    """

    def __init__(self, files: ModelFiles, dtype: str = "float32") -> None:
        self.config: NetworkConfig = describe(files)
        self._dtype = dtype
        self._network: LoadedNetwork = load_network(
            files, self.config, device=_CPU, dtype=getattr(torch, dtype), progress=lambda _: None
        )
        self._network.prove_rows()

    @property
    def network(self) -> LoadedNetwork:
        """What computes."""
        return self._network

    def over(self, kv_dtype: str, context: int) -> Runner:
        """A runner with pages for one stretch of `context` tokens."""
        return self.handed_over(kv_dtype, context)[0]

    def handed_over(self, kv_dtype: str, context: int) -> tuple[Runner, HandedOver]:
        """Likewise, with what makes its first pages those that another appliance would have sent rounded to 4 bits."""
        pages = -(-context // PAGE_TOKENS)
        kv = allocate(self.config, num_pages=pages, kv_dtype=kv_dtype, device=_CPU, dtype=self._dtype)
        mover, rounder = KVPageMover(kv), Int4Pages(kv)

        def hand_over(tokens: int) -> None:
            full = range(tokens // PAGE_TOKENS)
            came = rounder.unpack(rounder.pack(mover.export(full)))
            mover.restore(full, [memoryview(page) for page in came])

        return Runner(self._network, kv, _CPU), HandedOver(hand_over, mover.page_bytes / rounder.page_bytes)


class RoundedReader(Reader):
    """Likewise with weights and activations in 8 or 4 bits, on float32 arithmetic.

    Attributes:
        bits: Of a weight, scales counted, the mean over all matrices.

    Raises:
        ValueError: The model is no decoder.
    """

    def __init__(self, files: ModelFiles, form: RoundedFormat) -> None:
        super().__init__(files)
        if not isinstance(self._network, Decoder):
            raise ValueError(f"{files.name} is no decoder of text alone: {form} is not defined for it")
        rounded = RoundedDecoder(self._network, files, form)
        self._network, self.bits = rounded, rounded.bits


def kv_divergence(
    files: ModelFiles,
    tokens: Sequence[int],
    *,
    kv_dtype: str = "int8",
    context: int = 2048,
    progress: Progress | None = None,
) -> KVQuality:
    """Read `tokens` in stretches of `context` over float32 pages and over `kv_dtype` pages; float32 weights, CPU.

    Args:
        files: The model.
        tokens: A real text, at least two tokens.
        kv_dtype: The format under test.
        context: Length of a stretch; every position from the second on counts.
        progress: Share done, [0, 1].
    """
    reader = Reader(files)
    context = min(context, reader.config.max_position)
    truth, got = (reader.over(name, context) for name in ("float32", kv_dtype))
    found = divergence(truth, got, tokens, context=context, progress=progress)
    return KVQuality(
        **{name: getattr(found, name) for name in Divergence.__slots__},
        kv_dtype=kv_dtype,
        capacity=kv_capacity(reader.config, kv_dtype),
    )


def kv_capacity(config: NetworkConfig, kv_dtype: str) -> float:
    """Tokens per byte relative to bfloat16 pages, scales and 16-bit layers counted."""
    return kv_bytes_per_token(config, "bfloat16") / kv_bytes_per_token(config, kv_dtype)


def divergence(
    truth: Runner,
    got: Runner,
    tokens: Sequence[int],
    *,
    context: int,
    halfway: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Divergence:
    """Compare two runners' predictions on `tokens`, read in stretches of `context`, for which both have pages.

    Args:
        halfway: Done to the pages of `got` when the first half of a stretch is read, with its length; only positions after it
            count then.
    """
    return divergences(truth, [got], tokens, context=context, halfway=halfway, progress=progress)[0]


def divergences(
    truth: Runner,
    several: Sequence[Runner],
    tokens: Sequence[int],
    *,
    context: int,
    halfway: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> list[Divergence]:
    """`divergence` of several runners from one, which reads only once; `halfway` is for the pages of all of them."""
    tallies = [_Tally() for _ in several]
    for first in range(0, len(tokens), context):
        stretch = _sequence(tokens[first : first + context])
        length = len(stretch.tokens)
        half = length // 2 // PAGE_TOKENS * PAGE_TOKENS if halfway is not None else 0
        if halfway is not None and half == 0:
            continue  # no full page before the positions that count
        for start in (*range(0, half, ROWS), *range(half, length, ROWS)):
            count = min(ROWS, (half if start < half else length) - start)
            work = [Work(stretch, start, count, sample=True)]
            if halfway is not None and start == half:
                halfway(half)
            right = truth.all_logits(work)
            for got, tally in zip(several, tallies, strict=True):
                logits = got.all_logits(work)
                if start >= half:
                    tally.add(right, logits, stretch.tokens[start + 1 : start + count + 1])
            if progress is not None:
                progress(min(1.0, (first + start + count) / len(tokens)))
    return [tally.report() for tally in tallies]


def read(runner: Runner, tokens: Sequence[int]) -> None:
    """Compute one stretch of text, for whoever watches the network."""
    stretch = _sequence(tokens)
    for start in range(0, len(tokens), ROWS):
        runner.run([Work(stretch, start, min(ROWS, len(tokens) - start), sample=False)])


def continues(
    runner: Runner, prompt: Sequence[int], expected: Sequence[int], before: Callable[[int], None] | None = None
) -> bool:
    """Whether the model's greedy continuation of `prompt` begins with `expected`; `before` is done to the pages of the prompt."""
    sequence = _sequence([*prompt, *expected])
    sequence.tokens = list(prompt)
    for start in range(0, len(prompt) - 1, ROWS):
        count = min(ROWS, len(prompt) - 1 - start)
        runner.run([Work(sequence, start, count, sample=False)])
    if before is not None:
        before(len(prompt) - 1)
    for token in expected:
        ((draw,),) = runner.run([Work(sequence, len(sequence.tokens) - 1, 1, sample=True)])
        if draw.token != token:
            return False
        sequence.tokens.append(token)
    return True


def _sequence(tokens: Sequence[int]) -> EngineSequence:
    request = GenerateRequest(
        id="quality", prompt=tuple(tokens), sampling=SamplingParams(max_tokens=1, temperature=0.0)
    )
    sequence = EngineSequence.of(request, arrival=0, now=0.0)
    sequence.pages = list(range(-(-len(tokens) // PAGE_TOKENS)))
    return sequence


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

    def report(self) -> Divergence:
        return Divergence(
            positions=self.positions,
            mean_kl=self.kl / self.positions,
            max_kl=self.max_kl,
            agreement=self.agree / self.positions,
            perplexity=math.exp(self.loss / self.scored),
            perplexity_float32=math.exp(self.loss_truth / self.scored),
        )
