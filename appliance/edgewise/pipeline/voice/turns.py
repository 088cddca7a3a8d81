"""Where a turn of speech begins and ends, told from how likely each frame of sound is speech. Pure: it knows no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import FRAME, Span

FRAME_MS: Final = FRAME * 1000 // RATE

START_FRAMES: Final = 3
"""Frames of speech in a row that begin a turn: a click is shorter."""
PAUSE_FRAMES: Final = 3
"""Frames of silence after which a turn may have ended: its transcription begins then, and is dropped if the speaker goes on."""
HYSTERESIS: Final = 0.15
"""A turn goes on down to this much below the threshold, as in Silero's own iterator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """Attributes:
    threshold: Probability from which a frame is speech, 0 to 1.
    silence_ms: Silence that ends a turn.
    prefix_ms: Sound before the first frame of speech that belongs to the turn.
    """

    threshold: float = 0.5
    silence_ms: int = 500
    prefix_ms: int = 300


@dataclass(frozen=True, slots=True)
class Started:
    """Somebody speaks; the turn begins at this sample."""

    start: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A short silence: the turn may be over, and would be this."""

    span: Span


@dataclass(frozen=True, slots=True)
class Resumed:
    """It was not over."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The turn is over. `speech_end` is the end of its last frame of speech; `cut` where it was ended for its length."""

    span: Span
    speech_end: int
    cut: bool = False


TurnEvent = Started | Paused | Resumed | Stopped


class TurnDetector:
    """Finds turns in the probabilities of frames that follow each other.

    Args:
        max_seconds: A turn that is longer is ended there.
    """

    def __init__(self, options: TurnOptions, *, max_seconds: float, position: int = 0) -> None:
        self._options = options
        self._max_samples = int(max_seconds * RATE)
        self._position = position
        self._floor = position
        self._run = 0
        self._silent = 0
        self._start: int | None = None
        self._paused = False
        self._speech_end = position

    @property
    def position(self) -> int:
        """Samples that have been judged, since the session's beginning."""
        return self._position

    @property
    def start(self) -> int | None:
        """Where the turn under way began; None between turns."""
        return self._start

    @property
    def needed(self) -> int:
        """The first sample that a turn may still contain."""
        if self._start is not None:
            return self._start
        return self._before(self._position - self._run * FRAME)

    def feed(self, probability: float) -> tuple[TurnEvent, ...]:
        """What one more frame tells."""
        self._position += FRAME
        if self._start is None:
            return self._between(probability)
        return self._within(self._start, probability)

    def end(self) -> Span | None:
        """End the turn under way here, if there is one."""
        start = self._start
        self._reset()
        return None if start is None else Span(start, self._position)

    def _between(self, probability: float) -> tuple[TurnEvent, ...]:
        self._run = self._run + 1 if probability >= self._options.threshold else 0
        if self._run < START_FRAMES:
            return ()
        self._start = self._before(self._position - self._run * FRAME)
        self._speech_end, self._run, self._silent = self._position, 0, 0
        return (Started(self._start),)

    def _within(self, start: int, probability: float) -> tuple[TurnEvent, ...]:
        events: list[TurnEvent] = []
        if probability >= max(self._options.threshold - HYSTERESIS, 0.01):
            self._silent, self._speech_end = 0, self._position
            if self._paused:
                self._paused = False
                events.append(Resumed())
        else:
            self._silent += 1
        span = Span(start, self._position)
        if self._silent * FRAME_MS >= max(self._options.silence_ms, FRAME_MS):
            events.append(self._stop(span))
        elif self._position - start >= self._max_samples:
            events.append(self._stop(span, cut=True))
        elif self._silent >= PAUSE_FRAMES and not self._paused:
            self._paused = True
            events.append(Paused(span))
        return tuple(events)

    def _stop(self, span: Span, *, cut: bool = False) -> Stopped:
        stopped = Stopped(span, self._speech_end, cut)
        self._reset()
        return stopped

    def _reset(self) -> None:
        self._start, self._paused, self._silent, self._run = None, False, 0, 0
        self._floor = self._position

    def _before(self, position: int) -> int:
        """The padding before `position`; no turn reaches into the one before it."""
        return max(self._floor, position - self._options.prefix_ms * RATE // 1000)
