"""A transcription as its client reads it: JSON, text, subtitles, or server-sent events."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from edgewise.api.audio.transcription_schemas import AnswerFormat
from edgewise.api.context import RequestContext
from edgewise.api.faults import with_faults
from edgewise.api.responses import dumps
from edgewise.api.sse import KEEP_ALIVE, sse
from edgewise.models.whisper.languages import NAMES
from edgewise.pipeline.transcribe.run import TranscribeRun
from edgewise.pipeline.transcribe.task import Heard, Segment

MEDIA_TYPES: Final[dict[AnswerFormat, str]] = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "verbose_json": "application/json",
    "vtt": "text/vtt; charset=utf-8",
}


@dataclass(slots=True)
class Transcript:
    """What has been heard so far."""

    text: str = ""
    segments: list[Segment] = field(default_factory=list)

    def add(self, heard: Heard) -> None:
        self.text += heard.text
        self.segments += heard.segments


async def gather(run: TranscribeRun, context: RequestContext) -> Transcript:
    """All of it. Raises what an engine reports."""
    found = Transcript()
    async for heard in run.chunks():
        found.add(heard)
        context.keep_text(0, heard.text)
    return found


def body(run: TranscribeRun, found: Transcript, form: AnswerFormat, times: Collection[str]) -> bytes:
    """The whole answer, with times of what `times` names."""
    if form == "text":
        return f"{found.text.strip()}\n".encode()
    if form == "srt":
        return _srt(_cues(found, times)).encode()
    if form == "vtt":
        return _vtt(_cues(found, times)).encode()
    answer: dict[str, Any] = {"text": found.text.strip()}
    if form == "verbose_json":
        answer = {
            "task": run.task.aim,
            "language": NAMES.get(run.language, run.language),
            "duration": round(run.seconds, 3),
            **answer,
        }
        if "word" in times:
            answer["words"] = [asdict(word) for segment in found.segments for word in segment.words]
        if "segment" in times:
            answer["segments"] = [_segment(number, one) for number, one in enumerate(found.segments)]
    return dumps({**answer, "usage": _usage(run), "edgewise": run.receipt().to_dict()})


def transcript_events(
    run: TranscribeRun, context: RequestContext, *, keepalive_s: float
) -> AsyncGenerator[bytes, None]:
    """A stream's events; a fault becomes an error event, after which nothing comes."""
    return with_faults(_events(run, context, keepalive_s), context)


async def _events(run: TranscribeRun, context: RequestContext, keepalive_s: float) -> AsyncGenerator[bytes, None]:
    found = Transcript()
    while not run.done:
        heard = await run.receive(keepalive_s)
        if heard is None:
            yield KEEP_ALIVE
            continue
        found.add(heard)
        context.keep_text(0, heard.text)
        if heard.text:
            yield sse({"type": "transcript.text.delta", "delta": heard.text})
    done = {"text": found.text.strip(), "usage": _usage(run), "edgewise": run.receipt().to_dict()}
    yield sse({"type": "transcript.text.done", **done})


def _usage(run: TranscribeRun) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(run.seconds)}


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(segment.start * 100),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


Cue = tuple[float, float, str]
"""Begin and end in seconds, and what is shown then."""


def _cues(found: Transcript, times: Collection[str]) -> list[Cue]:
    """A cue for each segment, or for each word."""
    if "word" in times:
        return [(word.start, word.end, word.word) for segment in found.segments for word in segment.words]
    return [(one.start, one.end, one.text.strip()) for one in found.segments]


def _srt(cues: Sequence[Cue]) -> str:
    """SubRip."""
    return "".join(
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n\n"
        for number, (start, end, text) in enumerate(cues, start=1)
    )


def _vtt(shown: Sequence[Cue]) -> str:
    """WebVTT (W3C): an arrow in a text would end its cue."""
    cues = (
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text.replace('-->', '->')}\n\n" for start, end, text in shown
    )
    return "WEBVTT\n\n" + "".join(cues)


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
