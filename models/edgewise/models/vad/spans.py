"""From probabilities to stretches of speech, and from those to windows that a speech model hears at once. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edgewise.models.media.rates import RATE

FRAME: Final = 512
"""Samples of one probability."""
_BEGINS: Final = 0.5
"""From this probability on somebody speaks."""
_ENDS: Final = 0.35
"""Below it nobody does any more; between the two it stays as it is."""
_LEAST_SPEECH: Final = 0.25
_LEAST_PAUSE: Final = 0.3
_MARGIN: Final = 0.3
"""Seconds: shorter speech is none, shorter pauses are none, and so much more is heard on either side."""
_CUT_WITHIN: Final = 10.0
"""Speech without a pause is cut where it is least likely to be speech in the last so many seconds of a window."""
LONG_PAUSE: Final = 5.0
"""Seconds: a window ends at such a pause, since models invent words for long silence."""


@dataclass(frozen=True, slots=True)
class Span:
    """Samples [start, end)."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / RATE


def speech_spans(probabilities: npt.NDArray[np.float32], samples: int) -> list[Span]:
    """Stretches of speech with their margins, in order and apart. `samples`: of the recording."""
    spans: list[Span] = []
    begun: int | None = None
    quiet: int | None = None
    pause = int(_LEAST_PAUSE * RATE)
    for number, probability in enumerate(probabilities.tolist()):  # plain numbers: quicker to compare
        at = number * FRAME
        if probability >= _BEGINS:
            begun, quiet = at if begun is None else begun, None
        elif begun is not None and probability < _ENDS:
            quiet = at if quiet is None else quiet
            if at + FRAME - quiet >= pause:
                spans.append(Span(begun, quiet))
                begun = quiet = None
    if begun is not None:
        spans.append(Span(begun, samples if quiet is None else quiet))
    return _with_margins([span for span in spans if span.seconds >= _LEAST_SPEECH], samples)


def _with_margins(spans: Sequence[Span], samples: int) -> list[Span]:
    margin = int(_MARGIN * RATE)
    wide: list[Span] = []
    for span in spans:
        start, end = max(0, span.start - margin), min(samples, span.end + margin)
        if wide and start <= wide[-1].end:
            wide[-1] = Span(wide[-1].start, end)
        else:
            wide.append(Span(start, end))
    return wide


def windows(
    spans: Sequence[Span], probabilities: npt.NDArray[np.float32], *, seconds: float, long_pause: float = LONG_PAUSE
) -> list[Span]:
    """Stretches of at most `seconds` that hold all speech, cut in pauses where there are any."""
    most, apart = int(seconds * RATE), int(long_pause * RATE)
    found: list[Span] = []
    for span in (part for whole in spans for part in _parts(whole, probabilities, most)):
        if found and span.end - found[-1].start <= most and span.start - found[-1].end <= apart:
            found[-1] = Span(found[-1].start, span.end)
        else:
            found.append(span)
    return found


def _parts(span: Span, probabilities: npt.NDArray[np.float32], most: int) -> list[Span]:
    """Speech that is longer than a window, cut at its quietest frames."""
    parts, start = [], span.start
    while span.end - start > most:
        first, last = (start + most - int(_CUT_WITHIN * RATE)) // FRAME + 1, (start + most) // FRAME
        cut = FRAME * (max(first, 1) + int(np.argmin(probabilities[max(first, 1) : last])))
        parts.append(Span(start, cut))
        start = cut
    return [*parts, Span(start, span.end)]
