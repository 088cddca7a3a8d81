"""Measures a model's formats against float32 and says which are good enough; `models.gate_record` keeps the outcome.

Weights in int8 and int4 have no fixed bound: they are held to llama.cpp's formats of as many bits, rounded and measured on the
same weights and text (`models.decoder.rounded`). Those in fp8 have one, as they have no peer there. Of weights and KV pages
together, the bound is the sum of both.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.ledger import available_memory
from edgewise.engine.networks import describe
from edgewise.engine.quality import Divergence, Reader, RoundedReader, continues, divergences, kv_capacity
from edgewise.engine.runner import Runner
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.memory import kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.decoder.rounded import RoundedFormat
from edgewise.models.files import ModelFiles
from edgewise.models.gate_record import BOUNDS, PEER_SLACK, PEERS, FormatKind, FormatRecord

KV_FORMATS = ("int8", "fp8", "bfloat16", "float16")
WEIGHT_FORMATS = ("bfloat16", "float16")
_FLOAT_BYTES = 4
ROUNDED_FORMATS: tuple[RoundedFormat, ...] = ("int8", "int4", "fp8")


@dataclass(frozen=True, slots=True)
class Needle:
    """A prompt that hides a fact, and the tokens with which a model that found it goes on."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """See `models.gate_record.GateRecord`."""

    positions: int
    perplexity: float
    needles_found: int
    formats: tuple[FormatRecord, ...]


GateProgress = Callable[[str, float], None]
"""What is being measured, and the share of everything that is done."""


def measure_formats(
    files: ModelFiles,
    tokens: Sequence[int],
    needles: Sequence[Needle],
    *,
    context: int = 2048,
    progress: GateProgress | None = None,
) -> GateResult:
    """Every KV format with float32 weights, every weight format with float32 pages, a hand-over of pages in int4, and of a
    decoder weights in 8 and 4 bits and in fp8 with every KV format; on the CPU.

    Args:
        tokens: A real text.
        context: Length of the stretches in which it is read.

    Raises:
        OutOfMemory: Two copies of the model do not fit; nothing has been loaded then.
    """
    require_memory(files, context)
    gate = _Gate(files, tokens, needles, context, progress or _tell_nobody)
    gate.pages()
    for name in WEIGHT_FORMATS:
        gate.floats(name)
    if gate.rounds:
        for form in ROUNDED_FORMATS:
            gate.rounded(form)
    gate.hand_over()
    return gate.result()


def as_good(it: FormatRecord, peer: FormatRecord, positions: int) -> bool:
    """Whether weights diverge no more than the peer's, and agree as often, within two standard errors of the difference."""
    error = math.sqrt(2.0 * peer.agreement * (1.0 - peer.agreement) / positions)
    return it.mean_kl <= peer.mean_kl * PEER_SLACK and it.agreement >= peer.agreement - 2.0 * error


class _Gate:
    """One measurement. `rounds`: whether weights in 8 and 4 bits are measured."""

    def __init__(
        self, files: ModelFiles, tokens: Sequence[int], needles: Sequence[Needle], context: int, tell: GateProgress
    ) -> None:
        self._files, self._tokens, self._needles = files, tokens, needles
        self._truth = Reader(files)
        self.rounds = isinstance(self._truth.config, DecoderConfig)
        self._context = min(context, self._truth.config.max_position)
        self._longest = max([self._context, *(len(needle.prompt) + len(needle.answer) for needle in needles)])
        self._tell, self._done = tell, 0
        self._parts = 3 + len(WEIGHT_FORMATS) + (len(ROUNDED_FORMATS) + len(PEERS)) * self.rounds
        self._records: list[FormatRecord] = []
        self._exact: Divergence | None = None
        self._tell("float32", 0.0)
        self._found = self._count(self._truth.over("float32", self._longest), "float32")
        self._next()

    def pages(self) -> None:
        """KV formats, of weights in float32."""
        runners = [self._truth.over(name, self._longest) for name in KV_FORMATS]
        found = self._diverge("kv", runners)
        self._exact = found[0]
        for name, runner, it in zip(KV_FORMATS, runners, found, strict=True):
            record = self._record("kv", name, it, BOUNDS["kv", name], self._count(runner, "kv"))
            self._keep(replace(record, capacity=kv_capacity(self._truth.config, name)))
        self._next()

    def floats(self, name: str) -> None:
        """Weights in 16 bits."""
        runner = Reader(self._files, name).over("float32", self._longest)
        (it,) = self._diverge(f"weights {name}", [runner])
        self._keep(self._record("weights", name, it, BOUNDS["weights", name], self._count(runner, f"weights {name}")))
        self._next()

    def rounded(self, name: RoundedFormat) -> None:
        """Weights in 8 or 4 bits, after llama.cpp's where it has such."""
        peer = self._peer(name) if name in PEERS else None
        reader = RoundedReader(self._files, name)
        runners = [reader.over(kv, self._longest) for kv in ("float32", *KV_FORMATS)]
        alone, *both = self._diverge(f"weights {name}", runners)
        bound = BOUNDS["weights", name] if peer is None else peer.mean_kl * PEER_SLACK
        record = self._record("weights", name, alone, bound, self._count(runners[0], f"weights {name}"))
        good = record.passed and (peer is None or as_good(record, peer, alone.positions))
        self._keep(replace(record, bits=reader.bits, passed=good))
        for kv, it in zip(KV_FORMATS, both, strict=True):
            pair = self._record("both", f"{name}/{kv}", it, bound + BOUNDS["kv", kv], None)
            self._keep(replace(pair, bits=reader.bits, capacity=kv_capacity(self._truth.config, kv)))
        self._next()

    def hand_over(self) -> None:
        """Pages rounded on their way."""
        runner, handed = self._truth.handed_over("bfloat16", self._longest)
        (it,) = self._diverge("handover int4", [runner], against="bfloat16", halfway=handed.round)
        kept = self._count(runner, "handover int4", handed.round)
        record = self._record("handover", "int4", it, BOUNDS["handover", "int4"], kept)
        self._keep(replace(record, capacity=handed.spared))

    def result(self) -> GateResult:
        assert self._exact is not None
        self._tell("done", 1.0)
        return GateResult(
            positions=self._exact.positions,
            perplexity=self._exact.perplexity_float32,
            needles_found=sum(self._found),
            formats=tuple(self._records),
        )

    def _peer(self, name: RoundedFormat) -> FormatRecord:
        theirs: RoundedFormat = "Q8_0" if PEERS[name] == "Q8_0" else "Q4_0"
        reader = RoundedReader(self._files, theirs)
        (it,) = self._diverge(f"llama.cpp {theirs}", [reader.over("float32", self._longest)])
        record = replace(self._record("peer", theirs, it, it.mean_kl, None), bits=reader.bits)
        self._keep(record)
        self._next()
        return record

    def _diverge(
        self,
        what: str,
        runners: Sequence[Runner],
        against: str = "float32",
        halfway: Callable[[int], None] | None = None,
    ) -> list[Divergence]:
        return divergences(
            self._truth.over(against, self._context),
            runners,
            self._tokens,
            context=self._context,
            halfway=halfway,
            progress=lambda done: self._tell(what, (self._done + done / 2) / self._parts),
        )

    def _count(self, runner: Runner, what: str, before: Callable[[int], None] | None = None) -> list[bool]:
        """Which needles are found."""
        found = []
        for needle in self._needles:
            self._tell(f"needles, {what}", (self._done + 0.5) / self._parts)
            found.append(continues(runner, needle.prompt, needle.answer, before))
        return found

    def _record(
        self, kind: FormatKind, name: str, it: Divergence, bound: float, kept: list[bool] | None
    ) -> FormatRecord:
        return FormatRecord(
            kind=kind,
            name=name,
            mean_kl=it.mean_kl,
            max_kl=it.max_kl,
            agreement=it.agreement,
            perplexity=it.perplexity,
            needles=None if kept is None else sum(kept),
            capacity=None,
            bound=bound,
            passed=it.mean_kl <= bound and (kept is None or sum(kept) >= sum(self._found)),
        )

    def _keep(self, record: FormatRecord) -> None:
        self._records.append(record)

    def _next(self) -> None:
        self._done += 1
        gc.collect()  # the weights of one format before those of the next


def _tell_nobody(what: str, share: float) -> None:
    """What is measured, and how far it is, if nobody asks."""


def require_memory(files: ModelFiles, context: int) -> None:
    """Raises OutOfMemory where a model in float32, another form of it and pages for `context` tokens do not fit."""
    network = describe(files)
    rounded = isinstance(network, DecoderConfig)
    pages = (2 + len(KV_FORMATS)) * context * kv_bytes_per_token(network, "float32")
    need = weight_bytes(network, "float32") + weight_bytes(network, "float32" if rounded else "bfloat16") + pages
    need += workspace_bytes(network, 128, 128)
    if isinstance(network, DecoderConfig) and network.tied_embeddings:
        need += _FLOAT_BYTES * network.vocab_size * network.hidden_size  # a head of its own, in fp8
    have = available_memory()
    if need > have:
        raise OutOfMemory(
            f"The gate compares {files.name} in float32 with itself in other formats, which needs {mib(need)}; {mib(have)} are "
            "available. Measure it on a larger machine and copy models/gates from there."
        )
