"""TMRoPE: positions of a prompt in time, height and width, 25 to the second, so that what is seen and heard at a time agrees
(Xu et al. 2025, Qwen2.5-Omni). Torch-free.

Text, sound and pictures count as `models.multimodal.mrope` does. A film with its sound is cut into chunks of some seconds: the
placeholders of its frames in a chunk, then those of its sound in the same chunk, both from one origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.mrope import Positions, grid_positions, rope_positions

Run = tuple[Literal["video", "audio"], int, int]
"""Kind, first row and end of rows of that medium."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmWithSound:
    """The placeholders of a film and of its sound, interleaved, with two markers before and two behind.

    Attributes:
        start: Of the first marker in the prompt.
        grid, second: Of the film, as in `Media`.
        sound: Rows of its sound.
        per_chunk: Positions in time of a chunk.
    """

    start: int
    grid: tuple[int, int, int]
    second: float
    sound: int
    per_chunk: int

    @property
    def end(self) -> int:
        frames, rows, columns = self.grid
        return self.start + frames * rows * columns + self.sound + 4

    def runs(self) -> list[Run]:
        """In the order of the prompt, between the markers."""
        seen = _cuts(grid_positions(self.grid, self.second)[0], self.per_chunk)
        heard = _cuts(np.arange(self.sound), self.per_chunk)
        found: list[Run] = []
        for chunk in range(max(len(seen), len(heard))):
            if chunk < len(seen):
                found.append(("video", *seen[chunk]))
            if chunk < len(heard):
                found.append(("audio", *heard[chunk]))
        return found

    def positions(self) -> Positions:
        """[3, end - start] from 0 on; each pair of markers is at one position."""
        of = {
            "video": grid_positions(self.grid, self.second),
            "audio": np.broadcast_to(np.arange(self.sound), (3, self.sound)),
        }
        inner = 1 + np.concatenate([of[kind][:, begin:end] for kind, begin, end in self.runs()], axis=1)
        first, last = np.zeros((3, 2), np.int64), np.full((3, 2), _behind(inner, self.runs()))
        return np.concatenate([first, inner, last], axis=1)


def tmrope_positions(length: int, media: Iterable[Media | FilmWithSound]) -> Positions:
    """[3, length] int64 of a prompt; `media` in order.

    What goes on after it counts from the position behind the last token's, as all text does.
    """
    parts: list[Positions] = []
    plain: list[Media] = []
    done, origin = 0, 0
    for one in media:
        if isinstance(one, Media):
            plain.append(one)
            continue
        parts.append(origin + _between(plain, done, one.start))
        plain, origin = [], _next(parts, origin)
        parts.append(origin + one.positions())
        done, origin = one.end, int(parts[-1][0, -1]) + 1
    parts.append(origin + _between(plain, done, length))
    return np.concatenate(parts, axis=1)


def _between(media: Sequence[Media], begin: int, end: int) -> Positions:
    """Tokens [begin, end) of a prompt, from position 0 on."""
    return rope_positions(end - begin, [replace(one, start=one.start - begin) for one in media])


def _next(parts: Sequence[Positions], origin: int) -> int:
    return int(parts[-1].max()) + 1 if parts[-1].shape[1] else origin


def _behind(inner: Positions, runs: Sequence[Run]) -> int:
    """The position behind the last run."""
    _, begin, end = runs[-1]
    return int(inner[:, begin - end :].max()) + 1


def _cuts(times: NDArray[np.int64], per_chunk: int) -> list[tuple[int, int]]:
    """Runs of rows whose times lie in the same chunk; a chunk with no rows shifts those behind it, as in training."""
    cuts, begin, chunk = [], 0, 1
    for row, time in enumerate(times):
        if time >= chunk * per_chunk:
            cuts.append((begin, row))
            begin, chunk = row, chunk + 1
    return [*cuts, (begin, len(times))]
