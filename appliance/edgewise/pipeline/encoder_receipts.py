"""What encoders took of the device for an answer: texts to vectors, eyes, ears and voices, wherever they ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.engine.encoders.request import EncodeStats
from edgewise.engine.request import EncoderUse, RequestStats
from edgewise.pipeline.model import ServedEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderReceipt:
    """One encoder's part in a stage.

    Attributes:
        unit: What it is for: "image", "video" or "audio" of a model that has eyes or ears of its own; else the role of its
            model, as "embeddings", "ocr", "vision", "vad" or "text-to-speech".
        model: Whose.
        rung: Which form of it ran, as the ladder names it; where there is no ladder, the model's numeric class.
        device_ms: Time of the device that it took: of a batch, the share of these inputs.
        inputs: How many it computed. Media whose encoding was kept from an earlier request are not among them.
    """

    unit: str
    model: str
    rung: str | None
    device_ms: float
    inputs: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def merged(uses: Iterable[EncoderUse]) -> tuple[EncoderUse, ...]:
    """Uses of one engine summed by unit; the rung is that of the last."""
    found: dict[str, EncoderUse] = {}
    for one in uses:
        before = found.get(one.unit, EncoderUse(unit=one.unit, rung=one.rung))
        found[one.unit] = EncoderUse(
            unit=one.unit, rung=one.rung, seconds=before.seconds + one.seconds, media=before.media + one.media
        )
    return tuple(found.values())


def of_engine(model: str, stats: Iterable[RequestStats | None]) -> tuple[EncoderReceipt, ...]:
    """Of a language model's own encoders, over its answers."""
    uses = merged(use for one in stats if one is not None for use in one.encoders)
    return tuple(
        EncoderReceipt(
            unit=use.unit, model=model, rung=use.rung, device_ms=round(use.seconds * 1e3, 3), inputs=use.media
        )
        for use in uses
    )


def of_encoder(
    model: ServedEncoder, device_s: float, *, rung: str | None = None, inputs: int = 1
) -> tuple[EncoderReceipt, ...]:
    """Of a model that is an encoder; `rung` where its answer names one."""
    info = model.engine.info
    named = rung if rung is not None or info is None else info.numeric_class
    return (
        EncoderReceipt(
            unit=model.role, model=model.name, rung=named, device_ms=round(device_s * 1e3, 3), inputs=inputs
        ),
    )


def device_s(stats: Iterable[EncodeStats | None]) -> float:
    """Seconds of the device in all."""
    return sum(one.device_s for one in stats if one is not None)
