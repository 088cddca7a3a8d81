"""The receipt of an answer: where each stage ran, why, in which precision, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from edgewise.engine.api import Engine
from edgewise.engine.request import RequestStats
from edgewise.pipeline.plan import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    dtype: str
    kv_dtype: str
    quantize: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReceipt:
    """What one stage did. Times in milliseconds; None where the engine gave no account.

    `queued_ms`, `prefill_ms` and `decode_ms` are the largest of the stage's sequences, which run side by side; `restarts`
    likewise, `preemptions` are summed, `cached_tokens` counts each prompt once; `restored_tokens` are those of them that came
    back from host memory or disk.
    """

    stage: str
    where: str
    why: str
    numeric_class: str | None
    precision: Precision | None
    queued_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    tokens_per_s: float | None
    cached_tokens: int | None
    restored_tokens: int | None
    restarts: int | None
    preemptions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The `edgewise` object of an answer.

    `priority` is the deadline class in force, `privacy` the label; `sampling` holds the values in force, the model's
    recommendations included.
    """

    request_id: str
    model: str
    digest: str
    priority: PriorityName
    privacy: PrivacyName
    seed: int
    sampling: Mapping[str, float]
    stages: tuple[StageReceipt, ...]
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer: each prompt once, however many answers it got."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Measured by the service: seconds from the request's start to its first token, and from there to the last."""

    first_token_s: float | None
    generation_s: float
    tokens: int


def stage_receipt(
    decision: Decision[Engine], stats: Sequence[RequestStats | None], cached: int | None, pace: Pace
) -> StageReceipt:
    """Sum up one generate stage over its sequences."""
    info = decision.engine.info
    known = [one for one in stats if one is not None]
    whole = bool(known) and len(known) == len(stats)
    return StageReceipt(
        stage=decision.stage,
        where=decision.where,
        why=decision.reason,
        numeric_class=None if info is None else info.numeric_class,
        precision=None if info is None else Precision(dtype=info.dtype, kv_dtype=info.kv_dtype, quantize=info.quantize),
        queued_ms=_ms(max(one.queued_s for one in known)) if whole else None,
        prefill_ms=_ms(max(one.prefill_s for one in known)) if whole else None,
        decode_ms=_ms(max(one.decode_s for one in known)) if whole else None,
        ttft_ms=None if pace.first_token_s is None else _ms(pace.first_token_s),
        tokens_per_s=round((pace.tokens - len(stats)) / pace.generation_s, 2)
        if pace.generation_s > 0 and pace.tokens > len(stats)
        else None,
        cached_tokens=cached,
        restored_tokens=sum(one.restored_tokens for one in known) if whole else None,
        restarts=max(one.restarts for one in known) if whole else None,
        preemptions=sum(one.preemptions for one in known) if whole else None,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
