"""The detector is asked piece by piece, within the deadline of the whole recording."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from edgewise.core.errors import DeadlineExceeded
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.vad.spans import FRAME
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.transcribe import detect
from edgewise.pipeline.transcribe.detect import find_speech
from edgewise.pipeline.transcribe.task import SAMPLE_BYTES, TranscribeTask
from tests.pipeline.transcribe.scripted import listener


class Detector:
    """A test double that hears somebody speak everywhere."""

    info = None
    state = "ready"

    def __init__(self) -> None:
        self.requests: list[EncodeRequest] = []

    async def submit(self, request: EncodeRequest) -> Any:
        self.requests.append(request)
        frames = len(request.content) // SAMPLE_BYTES // FRAME
        content = np.full(frames, 0.9, dtype="<f4").tobytes()

        async def answer() -> AsyncIterator[EncodeChunk]:
            yield EncodeChunk(request_id=request.id, finish="done", content=content)

        return answer()


def task(detector: Detector | None, samples: np.ndarray[Any, np.dtype[np.float32]]) -> TranscribeTask:
    engine: Any = detector
    served = ServedEncoder(name="vad", role="vad", engine=engine, digest="sha256:0", created=0)
    return TranscribeTask(
        id="t", model=listener(None), detector=served if detector else None, samples=samples.tobytes(), deadline_s=9.0
    )


async def test_each_piece_has_what_is_left_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_PIECE", 10 * FRAME)
    monkeypatch.setattr(detect, "_LEAD", 2 * FRAME)
    detector = Detector()
    left = iter([9.0, 5.0, 1.0])
    found = await find_speech(task(detector, np.zeros(30 * FRAME, dtype=np.float32)), lambda: next(left))
    assert [request.deadline_s for request in detector.requests] == [9.0, 5.0, 1.0]
    assert [len(request.content) // SAMPLE_BYTES // FRAME for request in detector.requests] == [10, 12, 12]
    assert (found.pieces, found.probabilities.shape) == (3, (30,))
    assert [(span.start, span.end) for span in found.spans] == [(0, 30 * FRAME)]


async def test_a_deadline_that_is_over_ends_it_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_PIECE", 10 * FRAME)
    detector = Detector()

    def left() -> float:
        if detector.requests:
            raise DeadlineExceeded("It is over.")
        return 9.0

    with pytest.raises(DeadlineExceeded):
        await find_speech(task(detector, np.zeros(30 * FRAME, dtype=np.float32)), left)
    assert len(detector.requests) == 1


@pytest.mark.parametrize(("level", "heard"), [(0.0, False), (5e-4, False), (0.1, True), (-0.1, True)])
async def test_without_a_detector_loudness_decides(level: float, heard: bool) -> None:
    samples = np.zeros(1000, dtype=np.float32)
    samples[500] = level
    found = await find_speech(task(None, samples), lambda: None)
    assert [(span.start, span.end) for span in found.spans] == [(0, 1000)] * heard
