"""From the tokens of one window to segments, as OpenAI's `transcribe.py` reads them: times come in pairs between segments."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.models.whisper.config import TIME_STEP


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a segment without its times, and where it lies in its window, in seconds."""

    start: float
    end: float
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parsed:
    """Attributes:
    pieces: In order.
    until: Second of the window up to which it is heard; the next window begins there.
    """

    pieces: tuple[Piece, ...]
    until: float


def parse_window(tokens: Sequence[int], first_time: int, seconds: float) -> Parsed:
    """Segments of a window's text.

    Args:
        tokens: As written, without the end token.
        first_time: Id of the time 0.
        seconds: Length of the window.
    """
    is_time = [token >= first_time for token in tokens]
    cuts = [at for at in range(1, len(tokens)) if is_time[at] and is_time[at - 1]]
    closed = is_time[-2:] == [False, True]
    if not cuts:
        return Parsed(_pieces(tokens, first_time, seconds), seconds)
    # What follows the last pair without a time of its own is heard again, from that time on.
    ends = [*cuts, len(tokens)] if closed else cuts
    pieces = [
        piece
        for begin, end in zip([0, *ends], ends, strict=False)
        for piece in _pieces(tokens[begin:end], first_time, seconds)
    ]
    return Parsed(tuple(pieces), seconds if closed else _second(tokens[cuts[-1] - 1], first_time, seconds))


def compression_ratio(text: str) -> float:
    """Bytes over compressed bytes; above 2.4 words repeat (Radford et al. 2022, section 4.5). 0 for no text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def _pieces(tokens: Sequence[int], first_time: int, seconds: float) -> tuple[Piece, ...]:
    """The words between two times, as one piece; none where there are no words."""
    words = tuple(token for token in tokens if token < first_time)
    times = [_second(token, first_time, seconds) for token in tokens if token >= first_time]
    if not words:
        return ()
    start = times[0] if times else 0.0
    return (Piece(start, max(start, times[-1] if len(times) > 1 else seconds), words),)


def _second(token: int, first_time: int, most: float) -> float:
    return min(most, (token - first_time) * TIME_STEP)
