"""Our own voice is taken out of what the microphone hears, so that a loudspeaker in the room does not interrupt itself.

WebRTC's echo canceller (AEC3), as the package `livekit` has it: an adaptive filter for the way from loudspeaker to microphone,
whose delay it finds itself, and a suppressor for what the filter leaves. What others say at the same time is kept.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from edgewise.cli.voice_sound import RATE, Source
from edgewise.pipeline.voice.sound import WIDTH

if TYPE_CHECKING:
    from livekit.rtc.apm import AudioProcessingModule

_FRAMES: Final = 100
"""In a second: the canceller takes 10 ms at a time."""
_BEHIND_S: Final = 1.0
"""Of what was played, that is kept while no microphone asks; older sound is no longer an echo of anything."""


class EchoCanceller:
    """One loudspeaker and one microphone.

    Args:
        played_rate: Samples a second of what `played` is told.
    """

    def __init__(self, processor: AudioProcessingModule, played_rate: int) -> None:
        self._processor = processor
        self._played_rate = played_rate
        self._lock = threading.Lock()
        self._played = bytearray()
        self._heard = bytearray()

    def played(self, samples: bytes) -> None:
        """What the loudspeaker is given now, silence too. May be called from any thread, and does next to nothing there."""
        most = int(_BEHIND_S * self._played_rate) * WIDTH
        with self._lock:
            self._played += samples
            if len(self._played) > most:
                del self._played[: len(self._played) - most]

    def clean(self, samples: bytes) -> bytes:
        """What the microphone heard, at `RATE`, without what was played; up to 10 ms of it come with the next call."""
        for frame in self._played_frames():
            self._processor.process_reverse_stream(_frame(frame, self._played_rate))
        self._heard += samples
        cleaned = bytearray()
        size = RATE // _FRAMES * WIDTH
        while len(self._heard) >= size:
            frame = _frame(bytes(self._heard[:size]), RATE)
            del self._heard[:size]
            self._processor.process_stream(frame)
            cleaned += bytes(frame.data.cast("b"))
        return bytes(cleaned)

    def _played_frames(self) -> list[bytes]:
        size = self._played_rate // _FRAMES * WIDTH
        with self._lock:
            count = len(self._played) // size
            frames = [bytes(self._played[at * size : (at + 1) * size]) for at in range(count)]
            del self._played[: count * size]
        return frames


def make_canceller(played_rate: int) -> EchoCanceller | None:
    """None where its library is not installed, or not made for this machine."""
    try:
        from livekit.rtc.apm import AudioProcessingModule
    except (ImportError, OSError):
        return None
    return EchoCanceller(AudioProcessingModule(echo_cancellation=True, high_pass_filter=True), played_rate)


class EchoFree:
    """A `Source` without its loudspeaker's echo."""

    ended_at = None

    def __init__(self, source: Source, canceller: EchoCanceller) -> None:
        self._source = source
        self._canceller = canceller

    @property
    def overflows(self) -> int:
        return self._source.overflows

    async def blocks(self) -> AsyncIterator[bytes]:
        async for block in self._source.blocks():
            yield self._canceller.clean(block)


def _frame(samples: bytes, rate: int) -> Any:
    from livekit.rtc import AudioFrame

    return AudioFrame(bytearray(samples), rate, 1, len(samples) // WIDTH)
