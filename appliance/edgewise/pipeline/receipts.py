"""The receipt of an answer: where each stage ran, why, in which precision, and what it cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypeVar

from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from edgewise.engine.api import Engine
from edgewise.engine.pictures.request import DiffuseStats, PictureEngine
from edgewise.engine.request import LinkUse, RequestStats, Segment
from edgewise.pipeline.encoder_receipts import EncoderReceipt, of_engine
from edgewise.pipeline.plan import Decision, Plan, Prediction

PLACES_JOINED = "+"
Stats: TypeAlias = RequestStats | DiffuseStats
StatsT = TypeVar("StatsT", bound=Stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """None for what a kind of engine does not have: pictures have no key-value pages."""

    dtype: str
    kv_dtype: str | None = None
    quantize: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReceipt:
    """A part of one answer that one engine made, from token `offset` on; `reads` says it in words, as "local from 37"."""

    answer: int
    where: str
    offset: int
    reads: str
    numeric_class: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReceipt:
    """What every stage tells, whatever it does. Times in milliseconds; None where the engine gave no account.

    `where` is what happened: "local", "cloud" or "peer", or several in their order, as "cloud+local"; the place that was planned
    is in the plan. `why` is the plan's reason, followed by what made the stage go on elsewhere. `numeric_class` is None where it
    is unknown or parts differ in it, and `precision` where it is not that of the engine that was planned.

    `queued_ms` and the times of the kinds are the largest of the stage's items, which run side by side; `restarts` likewise,
    `preemptions` are summed. `segments` are there where an item was not made by the local engine alone. `encoders` are those that
    computed for the stage on this device.
    """

    stage: str
    where: str
    why: str
    numeric_class: str | None
    precision: Precision | None
    queued_ms: float | None
    restarts: int | None
    preemptions: int | None
    segments: tuple[SegmentReceipt, ...] = ()
    encoders: tuple[EncoderReceipt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReceipt(StageReceipt):
    """`cached_tokens` counts each prompt once; `restored_tokens` are those of them that came back from host memory or disk,
    or, `handed_tokens`, from another appliance, in `handed_bytes`. `handed_form` is "exact", or "int4" where pages were rounded
    on their way, so that exact ones may give another answer; None without such pages. `accepted_tokens` are those of
    `proposed_tokens`, guessed and checked, that were right."""

    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    tokens_per_s: float | None
    cached_tokens: int | None
    restored_tokens: int | None
    handed_tokens: int | None
    handed_bytes: int | None = None
    handed_form: str | None = None
    proposed_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffuseReceipt(StageReceipt):
    """`steps` are those of each picture, `computed_steps` those of all that the step cache did not predict. With `retried`, half
    precision overflowed and a picture was drawn again in a wider type. `came_as` is what finished pictures crossed the link as:
    "png", or "latents", which were decoded here, or both joined by "+"; `came_bytes` sums those up. None where none did."""

    width: int | None
    height: int | None
    steps: int | None
    computed_steps: int | None
    guidance: float | None
    denoise_ms: float | None
    decode_ms: float | None
    retried: bool | None
    came_as: str | None
    came_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookReceipt(StageReceipt):
    """A model looked at a picture or a film for another one, which has no eyes, and its words became part of the prompt.

    `model` is the one that looked, `of` the field with the picture, `frames` how many pictures of a film it looked at (1 for a
    picture); `compute_ms` is that of all of them, None where its engine gave no account.
    """

    model: str
    of: str
    compute_ms: float | None
    frames: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumReceipt:
    """A picture, film or recording of the request: its size as it was sent, and as the model sees it.

    `of` is its field; `frames` and `every_s` (seconds from one to the next, None of a picture) are those that are seen;
    `seconds` is how long a recording is; `tokens` is how many it takes of the prompt (0 where words stand for it). `bounded_by`
    names whose bound of pixels was in force: "max_image_pixels", "detail" or "vision.max_pixels"; None where the model alone
    decided.
    """

    of: str
    kind: str
    width: int
    height: int
    seen_width: int
    seen_height: int
    frames: int
    every_s: float | None
    tokens: int
    bounded_by: str | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenReceipt:
    """How an answer was spoken (`engine.speech.SpeechStats`): `first_audio_ms` is the time from the request to the first sound,
    None where there was none; `real_time_factor` the time that speaking took over the length of the sound; `worst_gap_ms` and
    `gaps` what a listener missed who plays all that is there. With `cut`, it is longer than the Talker may speak."""

    voice: str
    first_audio_ms: float | None
    speech_ms: float
    real_time_factor: float
    worst_gap_ms: float
    gaps: int
    chunks: int
    codec_tokens: int
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a request cost: bytes over the link, money, and energy of this device in joules (None where its power is unknown).

    With `hedged`, two sides worked on it and both are counted.
    """

    up_bytes: int = 0
    down_bytes: int = 0
    price: float = 0.0
    joules: float | None = None
    hedged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The `edgewise` object of an answer, whatever was asked.

    `priority` is the deadline class in force, `privacy` the label; `plan` is what `show_plan` makes of the plan; `total_ms` is
    the time from the plan to the last token or picture, which the plan predicted.
    """

    request_id: str
    model: str
    digest: str
    priority: PriorityName
    privacy: PrivacyName
    plan: Mapping[str, Any]
    total_ms: float
    costs: Costs
    stages: tuple[StageReceipt, ...]
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReceipt(Receipt):
    """`sampling` holds the values in force, the model's recommendations included; `media` is what was seen of each picture,
    `speech` how the answer was spoken, if it was."""

    stages: tuple[StageReceipt, ...]
    seed: int
    sampling: Mapping[str, float]
    media: tuple[MediumReceipt, ...] = ()
    speech: SpokenReceipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReceipt(Receipt):
    """`seeds` are those of the pictures in their order."""

    stages: tuple[DiffuseReceipt, ...]
    seeds: tuple[int, ...]


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


def generate_receipt(
    decision: Decision[Engine], stats: Sequence[RequestStats | None], cached: int | None, pace: Pace
) -> GenerateReceipt:
    """Sum up one generate stage over its sequences."""
    info = decision.engine.info
    precision = None if info is None else Precision(dtype=info.dtype, kv_dtype=info.kv_dtype, quantize=info.quantize)
    known = _all_known(stats)
    return GenerateReceipt(
        **_common(decision, stats, None if info is None else info.numeric_class, precision),
        encoders=of_engine("" if info is None else info.model, known),
        prefill_ms=_ms(max(one.prefill_s for one in known)) if known else None,
        decode_ms=_ms(max(one.decode_s for one in known)) if known else None,
        ttft_ms=None if pace.first_token_s is None else _ms(pace.first_token_s),
        tokens_per_s=round((pace.tokens - len(stats)) / pace.generation_s, 2)
        if pace.generation_s > 0 and pace.tokens > len(stats)
        else None,
        cached_tokens=cached,
        restored_tokens=sum(one.restored_tokens for one in known) if known else None,
        handed_tokens=sum(one.handed_tokens for one in known) if known else None,
        handed_bytes=sum(one.handed_bytes for one in known) if known else None,
        handed_form="+".join(sorted({one.handed_form for one in known if one.handed_form})) or None,
        proposed_tokens=sum(one.proposed_tokens for one in known) if known else None,
        accepted_tokens=sum(one.accepted_tokens for one in known) if known else None,
    )


def spoken_receipt(stats: RequestStats | None) -> SpokenReceipt | None:
    """None for an answer that was not spoken."""
    told = None if stats is None else stats.speech
    if told is None:
        return None
    return SpokenReceipt(
        voice=told.voice,
        first_audio_ms=None if told.first_audio_s is None else _ms(told.first_audio_s),
        speech_ms=_ms(told.speech_s),
        real_time_factor=round(told.real_time_factor, 4),
        worst_gap_ms=_ms(told.worst_gap_s),
        gaps=told.gaps,
        chunks=told.chunks,
        codec_tokens=told.codec_tokens,
        cut=told.cut,
    )


def diffuse_receipt(decision: Decision[PictureEngine], stats: Sequence[DiffuseStats | None]) -> DiffuseReceipt:
    """Sum up one diffuse stage over its pictures."""
    info = decision.engine.info
    precision = None if info is None else Precision(dtype=info.dtype)
    known = _all_known(stats)
    size = known[0] if known else None
    return DiffuseReceipt(
        **_common(decision, stats, None if info is None else info.numeric_class, precision),
        width=None if size is None else size.width,
        height=None if size is None else size.height,
        steps=None if size is None else size.steps,
        computed_steps=sum(one.computed_steps for one in known) if known else None,
        guidance=None if size is None else size.guidance,
        denoise_ms=_ms(max(one.denoise_s for one in known)) if known else None,
        decode_ms=_ms(max(one.decode_s for one in known)) if known else None,
        retried=any(one.retried for one in known) if known else None,
        came_as=PLACES_JOINED.join(dict.fromkeys(one.came_as for one in known if one.came_as)) or None,
        came_bytes=sum(one.came_bytes for one in known) or None,
    )


def place_of(planned: str, stats: Sequence[Stats | None]) -> str:
    """Where a stage's items were made: the places in their order, joined by "+". What gave no account of its own counts as made
    where it was planned."""
    places = (
        [planned] if one is None or not one.segments else [segment.where for segment in one.segments] for one in stats
    )
    return PLACES_JOINED.join(dict.fromkeys(itertools.chain.from_iterable(places))) or planned


def _common(
    decision: Decision[Any], stats: Sequence[Stats | None], numeric_class: str | None, precision: Precision | None
) -> dict[str, Any]:
    """The fields of `StageReceipt`; class and precision are those of the engine that was planned."""
    known: list[Stats] = _all_known(stats)
    segments = segments_of(stats)
    classes = {segment.numeric_class for segment in segments}
    if any(one is None or not one.segments for one in stats) or not stats:
        classes.add(numeric_class)
    told = next(iter(classes)) if len(classes) == 1 else None
    changes = [segment.why for segment in segments if segment.where != decision.where]
    return {
        "stage": decision.stage,
        "where": place_of(decision.where, stats),
        "why": " ".join(dict.fromkeys([decision.reason, *changes])),
        "numeric_class": told,
        "precision": precision if told == numeric_class else None,
        "queued_ms": _ms(max(one.queued_s for one in known)) if known else None,
        "restarts": max(one.restarts for one in known) if known else None,
        "preemptions": sum(one.preemptions for one in known) if known else None,
        "segments": segments,
    }


def _all_known(stats: Sequence[StatsT | None]) -> list[StatsT]:
    """Every item's account; empty where one is missing, so that no sum is told of a part."""
    known = [one for one in stats if one is not None]
    return known if len(known) == len(stats) else []


def costs_of(stats: Sequence[RequestStats | None], links: Sequence[LinkUse | None], watts: float | None) -> Costs:
    """Sum up what the answers of a stage cost; `links` is what each cost beyond this device, also where it broke, and `watts`
    what computing draws here.

    Sequences run side by side: the device computes for as long as the longest of them.
    """
    known = [one for one in stats if one is not None]
    used = [link for link in links if link is not None]
    busy_s = max((_local_s(one) for one in known), default=0.0)
    return Costs(
        up_bytes=sum(link.up_bytes for link in used),
        down_bytes=sum(link.down_bytes for link in used),
        price=sum((link.price for link in used), 0.0),
        joules=None if watts is None else round(watts * busy_s, 3),
        hedged=any(link.hedged for link in used),
    )


def show_plan(plan: Plan) -> dict[str, Any]:
    """A plan as plain data for JSON: what was predicted for every place, and why it won or lost."""
    return {
        "id": plan.id,
        "policy": plan.policy,
        "measured": dict(plan.measured),
        "stages": [
            {
                "stage": decision.stage,
                "where": decision.where,
                "why": decision.reason,
                "predicted": _predicted(decision.predicted),
                "candidates": [
                    {
                        "where": candidate.where,
                        "allowed": candidate.allowed,
                        "why": candidate.why,
                        "predicted": _predicted(candidate.predicted),
                        "score": None if candidate.score is None else round(candidate.score, 6),
                    }
                    for candidate in decision.candidates
                ],
            }
            for decision in plan.decisions
        ],
    }


def predicted_s(plan: Plan) -> float | None:
    """Seconds that a plan's stages take one after the other; None where one of them is unknown."""
    totals = [None if one.predicted is None else one.predicted.total_s for one in plan.decisions]
    return None if None in totals or not totals else sum(total for total in totals if total is not None)


def _predicted(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    return {
        "first_ms": None if prediction.first_s is None else _ms(prediction.first_s),
        "total_ms": None if prediction.total_s is None else _ms(prediction.total_s),
        "up_bytes": prediction.up_bytes,
        "down_bytes": prediction.down_bytes,
        "joules": None if prediction.joules is None else round(prediction.joules, 3),
        "price": round(prediction.price, 9),
        "answer_tokens": prediction.answer_tokens,
    }


def segments_of(stats: Sequence[Stats | None]) -> tuple[SegmentReceipt, ...]:
    """Who made which part of which answer, as far as the local engine did not make it alone."""
    return tuple(
        SegmentReceipt(
            answer=answer,
            where=segment.where,
            offset=segment.offset,
            reads=f"{segment.where} from {segment.offset}",
            numeric_class=segment.numeric_class,
            why=segment.why,
        )
        for answer, one in enumerate(stats)
        for segment in (() if one is None else one.segments)
    )


def _local_s(stats: RequestStats) -> float:
    """Seconds of computing on this device: the share of an answer's tokens that were made here."""
    busy = stats.prefill_s + stats.decode_s
    if not stats.segments:
        return busy
    return busy * _local_tokens(stats.segments, stats.completion_tokens) / max(1, stats.completion_tokens)


def _local_tokens(segments: Sequence[Segment], count: int) -> int:
    ends = [*(segment.offset for segment in segments[1:]), count]
    return sum(
        max(0, end - segment.offset) for segment, end in zip(segments, ends, strict=True) if segment.where == "local"
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
