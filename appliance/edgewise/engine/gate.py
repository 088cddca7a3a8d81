"""Measures a model's formats against float32 and says which are good enough; `models.gate_record` keeps the outcome."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgewise.core.errors import OutOfMemory
from edgewise.core.sizes import mib
from edgewise.engine.ledger import available_memory
from edgewise.engine.networks import describe
from edgewise.engine.quality import Progress, Reader, continues, divergence, kv_capacity
from edgewise.engine.runner import Runner
from edgewise.models.decoder.memory import kv_bytes_per_token, weight_bytes, workspace_bytes
from edgewise.models.files import ModelFiles
from edgewise.models.gate_record import BOUNDS, FormatKind, FormatRecord

KV_FORMATS = ("int8", "fp8", "bfloat16", "float16")
WEIGHT_FORMATS = ("bfloat16", "float16")


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
    """Every KV format with float32 weights, every weight format with float32 pages, and a hand-over of pages in int4; on the CPU.

    Args:
        tokens: A real text.
        context: Length of the stretches in which it is read.

    Raises:
        OutOfMemory: Two copies of the model do not fit; nothing has been loaded then.
    """
    _require_memory(files, context)
    truth = Reader(files)
    context = min(context, truth.config.max_position)
    longest = max([context, *(len(needle.prompt) + len(needle.answer) for needle in needles)])
    jobs: list[tuple[FormatKind, str]] = [("kv", name) for name in KV_FORMATS]
    jobs += [("weights", name) for name in WEIGHT_FORMATS]
    jobs.append(("handover", "int4"))
    parts = 1 + len(jobs)
    tell = progress or _tell_nobody

    tell("float32", 0.0)
    found = _needles(truth.over("float32", longest), needles, lambda done: tell("needles, float32", done / parts))
    records: list[FormatRecord] = []
    positions, perplexity = 0, 0.0
    for number, (kind, name) in enumerate(jobs, start=1):

        def share(done: float, what: str = f"{kind} {name}", first: int = number) -> None:
            tell(what, (first + done / 2) / parts)

        reader = Reader(files, name) if kind == "weights" else truth
        runner, handed = reader.handed_over({"kv": name, "weights": "float32", "handover": "bfloat16"}[kind], longest)
        against = truth.over("bfloat16" if kind == "handover" else "float32", context)
        halfway = handed.round if kind == "handover" else None
        it = divergence(against, runner, tokens, context=context, halfway=halfway, progress=share)
        if kind != "handover":
            positions, perplexity = it.positions, it.perplexity_float32
        kept = _needles(runner, needles, lambda done, share=share: share(1.0 + done), halfway)  # type: ignore[misc]
        capacity = handed.spared if kind == "handover" else kv_capacity(truth.config, name) if kind == "kv" else None
        bound = BOUNDS[kind, name]
        records.append(
            FormatRecord(
                kind=kind,
                name=name,
                mean_kl=it.mean_kl,
                max_kl=it.max_kl,
                agreement=it.agreement,
                perplexity=it.perplexity,
                needles=sum(kept),
                capacity=capacity,
                bound=bound,
                passed=it.mean_kl <= bound and sum(kept) >= sum(found),
            )
        )
        del reader, runner, against, handed, halfway
        gc.collect()  # the weights of one format before those of the next
    tell("done", 1.0)
    return GateResult(positions=positions, perplexity=perplexity, needles_found=sum(found), formats=tuple(records))


def _tell_nobody(what: str, share: float) -> None:
    """What is measured, and how far it is, if nobody asks."""


def _needles(
    runner: Runner, needles: Sequence[Needle], tell: Progress, before: Callable[[int], None] | None = None
) -> list[bool]:
    found = []
    for number, needle in enumerate(needles, start=1):
        found.append(continues(runner, needle.prompt, needle.answer, before))
        tell(number / len(needles))
    return found


def _require_memory(files: ModelFiles, context: int) -> None:
    network = describe(files)
    pages = 2 * context * kv_bytes_per_token(network, "float32")
    need = weight_bytes(network, "float32") + weight_bytes(network, "bfloat16") + pages
    need += workspace_bytes(network, 128, 128)
    have = available_memory()
    if need > have:
        raise OutOfMemory(
            f"The gate compares {files.name} in float32 with itself in other formats, which needs {mib(need)}; {mib(have)} are "
            "available. Measure it on a larger machine and copy models/gates from there."
        )
