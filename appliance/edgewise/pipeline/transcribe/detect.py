"""Where in a recording somebody speaks, asked of a detector piece by piece, so that an hour is no large message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncodeStats
from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import FRAME, Span, speech_spans
from edgewise.pipeline.encode import encode
from edgewise.pipeline.encoder_receipts import device_s
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.transcribe.task import SAMPLE_BYTES, TranscribeTask

_PIECE: Final = 300 * RATE // FRAME * FRAME
_LEAD: Final = 2 * RATE // FRAME * FRAME
"""Samples before a piece that the detector hears first: it needs a moment to settle."""
_AUDIBLE: Final = 1e-3
"""Without a detector, a recording whose samples all stay below this is silence."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Speech:
    """Attributes:
    spans: Where somebody speaks, in samples.
    probabilities: One for each `FRAME`; empty without a detector.
    queued_s, compute_s: What the detector took; `device_s` is its share of batches, `pieces` how many it was asked about.
    """

    spans: list[Span]
    probabilities: Floats
    queued_s: float = 0.0
    compute_s: float = 0.0
    device_s: float = 0.0
    pieces: int = 0

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    def silence(self, start: float, end: float) -> float:
        """1 - the mean probability of speech between two seconds; 0 without a detector."""
        part = self.probabilities[int(start * RATE) // FRAME : int(end * RATE) // FRAME + 1]
        return 0.0 if part.shape[0] == 0 else round(1.0 - float(part.mean()), 4)

    def left(self, start: int, end: int) -> float:
        """Seconds of speech between two samples."""
        return sum(max(0, min(end, span.end) - max(start, span.start)) for span in self.spans) / RATE


async def find_speech(task: TranscribeTask, left: Callable[[], float | None]) -> Speech:
    """Raises as of every engine, and what `left` raises.

    Args:
        left: Seconds that the detector has for the next piece: the deadline is that of the whole recording.
    """
    count = len(task.samples) // SAMPLE_BYTES
    if task.detector is None:
        samples = np.frombuffer(task.samples, dtype="<f4")  # no copy of it is made: an hour of sound is 220 MiB
        loud = max(samples.max(initial=0.0), -samples.min(initial=0.0)) >= _AUDIBLE
        return Speech([Span(0, count)] if loud else [], np.zeros(0, dtype=np.float32))
    found: list[Floats] = []
    accounts: list[EncodeStats | None] = []
    for number, start in enumerate(range(0, count, _PIECE)):
        lead = min(start, _LEAD)
        chunk = await _ask(task, task.detector, number, start - lead, min(count, start + _PIECE), left())
        found.append(np.frombuffer(chunk.content, dtype="<f4")[lead // FRAME :])
        accounts.append(chunk.stats)
    probabilities = np.concatenate(found) if found else np.zeros(0, dtype=np.float32)
    known = [one for one in accounts if one is not None]
    return Speech(
        speech_spans(probabilities, count),
        probabilities,
        queued_s=max((one.queued_s for one in known), default=0.0),
        compute_s=sum(one.compute_s for one in known),
        device_s=device_s(known),
        pieces=len(accounts),
    )


async def _ask(
    task: TranscribeTask, detector: ServedEncoder, number: int, start: int, end: int, left_s: float | None
) -> EncodeChunk:
    request = EncodeRequest(
        id=f"{task.id}/speech-{number}",
        content=task.samples[start * SAMPLE_BYTES : end * SAMPLE_BYTES],
        key=task.key,
        priority=task.priority,
        deadline_s=left_s,
    )
    return await encode(detector, request)
