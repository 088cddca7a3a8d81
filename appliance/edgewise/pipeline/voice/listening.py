"""What is heard: sound of any rate, kept as long as a turn may need it, and judged frame by frame."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from edgewise.core.errors import InvalidRequest
from edgewise.models.media.rates import RATE
from edgewise.models.media.resample import Resampler
from edgewise.models.vad.spans import FRAME, Span
from edgewise.pipeline.voice.protocols import VoiceModels
from edgewise.pipeline.voice.sound import WIDTH, SoundBuffer
from edgewise.pipeline.voice.turns import TurnDetector, TurnEvent, TurnOptions

_UNHEARD_S: Final = 2.0
"""Sound that may wait for the detector; whoever sends faster waits."""


class Listening:
    """Args:
    hear: Told of turns, in their order.
    turns: How they are found; None where the caller ends them by `take_turn`.
    rate: Samples a second of what comes.
    max_seconds: Longest turn.
    """

    def __init__(
        self,
        models: VoiceModels,
        hear: Callable[[TurnEvent], Awaitable[None]],
        *,
        turns: TurnOptions | None,
        rate: int,
        max_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._models = models
        self._hear = hear
        self._turns = turns
        self._rate = rate
        self._max_seconds = max_seconds
        self._clock = clock
        self._sound = SoundBuffer()
        self._resampler = Resampler(rate, RATE)
        self._arrivals: deque[tuple[int, float]] = deque()
        self._news = asyncio.Event()
        self._progress = asyncio.Event()
        self.restart()

    def configure(self, turns: TurnOptions | None, rate: int) -> bool:
        """What holds from now on; whether a turn under way has been forgotten for it."""
        if rate != self._rate:
            self._rate, self._resampler = rate, Resampler(rate, RATE)
        if turns == self._turns:
            return False
        self._turns = turns
        self.restart()
        return True

    def restart(self) -> None:
        """Find turns from here on; what was heard before is forgotten."""
        self._sound.forget_before(self._sound.end)
        self._arrivals.clear()
        self._detector = TurnDetector(
            self._turns or TurnOptions(), max_seconds=self._max_seconds, position=self._sound.end
        )
        self._state = b""
        self._progress.set()

    async def append(self, samples: bytes) -> None:
        """Sound at the input's rate. Waits where the detector is behind.

        Raises:
            InvalidRequest: Without turn detection, more than the longest turn is waiting to be taken.
        """
        ready = self._resampler.feed(samples)
        if self._turns is None and self._sound.seconds + len(ready) / WIDTH / RATE > self._max_seconds:
            raise InvalidRequest(
                f"'audio' makes the input buffer longer than {self._max_seconds:g} s, the limit of a turn "
                "(`voice.max_turn_s`): commit or clear it first.",
                param="audio",
            )
        if not ready:
            return
        self._sound.append(ready)
        self._arrivals.append((self._sound.end, self._clock()))
        self._news.set()
        while self._turns is not None and self._sound.end - self._detector.position > _UNHEARD_S * RATE:
            self._progress.clear()
            await self._progress.wait()

    def take(self, span: Span) -> bytes:
        """The samples of a turn that is being told: 16 bits each, at 16 kHz."""
        return self._sound.take(span)

    def take_turn(self) -> bytes:
        """The samples of the turn under way, or all that is kept where none is, which are forgotten; may be empty."""
        start = self._detector.start
        samples = self._sound.take(Span(self._sound.start if start is None else start, self._sound.end))
        self.restart()
        return samples

    def arrived(self, position: int) -> float:
        """When this sample was there."""
        return next((when for end, when in self._arrivals if end >= position), self._clock())

    async def run(self) -> None:
        """Judge what comes, until it is cancelled. Raises as the detector does: without it nothing is heard any more."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._turns is not None and await self._judge():
                self._progress.set()

    async def _judge(self) -> bool:
        """Judge all whole frames that are there; whether there were any."""
        detector = self._detector
        count = (self._sound.end - detector.position) // FRAME
        if not count:
            return False
        samples = self._sound.take(Span(detector.position, detector.position + count * FRAME))
        found, state = await self._models.probabilities(samples, self._state)
        if detector is not self._detector:
            return True  # it was taken or forgotten meanwhile
        self._state = state
        for event in [event for probability in found for event in detector.feed(probability)]:
            await self._hear(event)
            if detector is not self._detector:
                return True
        self._sound.forget_before(detector.needed)
        while len(self._arrivals) > 1 and self._arrivals[1][0] <= detector.needed:
            self._arrivals.popleft()
        return True
