"""Have a model look at one picture: submit, wait for the answer, and tell which model it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.pipeline.encode import encode
from edgewise.pipeline.encoder_receipts import EncoderReceipt, device_s, of_encoder
from edgewise.pipeline.model import ServedEncoder

_WHY: Final = "Models that look at pictures run on this device only."


@dataclass(frozen=True, slots=True, kw_only=True)
class LookTask:
    """One picture to look at; what is not said here is as in `pipeline.task.Task`.

    Attributes:
        picture: Encoded, as it was sent.
        options: Of the model's role: "frame", and "top" for labels.
    """

    id: str
    model: ServedEncoder
    picture: bytes
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    privacy: Privacy = Privacy.PRIVATE


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, as the model's role gives it, and the receipt."""

    seen: Mapping[str, Any]
    receipt: Mapping[str, Any]
    encoders: tuple[EncoderReceipt, ...] = ()


async def look(task: LookTask) -> Look:
    """What a model sees. A caller who leaves cancels it.

    Raises:
        InvalidRequest: It is no picture, or beyond a limit.
        QueueFull, EngineUnavailable, OutOfMemory, DeadlineExceeded: As of every engine.
    """
    request = EncodeRequest(
        id=task.id,
        content=task.picture,
        options=task.options,
        key=task.key,
        priority=task.priority,
        deadline_s=task.deadline_s,
    )
    chunk = await encode(task.model, request)
    encoders = of_encoder(task.model, device_s([chunk.stats]), rung=chunk.result.get("precision"))
    return Look(chunk.result, _receipt(task, chunk, encoders), encoders)


def _receipt(task: LookTask, chunk: EncodeChunk, encoders: Sequence[EncoderReceipt]) -> dict[str, Any]:
    """Times in milliseconds."""
    info, stats = task.model.engine.info, chunk.stats
    stage = {
        "stage": "look",
        "where": "local",
        "why": _WHY,
        "model": task.model.name,
        "numeric_class": None if info is None else info.numeric_class,
        "queued_ms": None if stats is None else round(stats.queued_s * 1e3, 3),
        "compute_ms": None if stats is None else round(stats.compute_s * 1e3, 3),
        "restarts": None if stats is None else stats.restarts,
        "encoders": [one.to_dict() for one in encoders],
    }
    return {
        "request_id": task.id,
        "model": task.model.name,
        "digest": task.model.digest,
        "priority": task.priority.label,
        "privacy": task.privacy.label,
        "stages": [stage],
    }
