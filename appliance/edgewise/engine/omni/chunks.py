"""How much sound to make at a time: little for the first sound, then as much as what is still to be played allows. Pure.

A chunk of n blocks costs time for n blocks and for the margins around them, so small chunks cost more for each second of sound.
The smallest size whose sound lasts as long as it takes to make *sustains* playback. The first chunk is the smallest after which a
sustaining one can be made before the sound runs out; every further one is the largest that will be there in time. Playback then
never stops while the stages are as fast as measured: what remains to be played never falls below the time of a sustaining chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST: Final = 8
"""Blocks of a chunk: bounds memory, and the time of one turn, which text may have to wait for."""
SAFETY: Final = 1.25
"""Measured times are taken as so much longer."""
_FORGET: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What does not change.

    Attributes:
        block_s: Seconds of sound of a block.
        block_tokens: Codec tokens of a block.
        margin: Blocks that are computed with every chunk besides its own.
        held_s: Seconds of the last sound that wait for what follows.
    """

    block_s: float
    block_tokens: int
    margin: int
    held_s: float


@dataclass(slots=True)
class Rates:
    """What the stages take, as measured, other requests' turns included.

    Attributes:
        token_s: Seconds of a codec token.
        block_s: Seconds of a block in Code2Wav, margins counted as blocks.
    """

    token_s: float
    block_s: float

    def token(self, seconds: float) -> None:
        """A token was made."""
        self.token_s += _FORGET * (seconds - self.token_s)

    def chunk(self, computed: int, seconds: float) -> None:
        """So many blocks were computed, margins among them. A slower one counts at once, faster ones slowly."""
        found = seconds / computed
        self.block_s = found if found > self.block_s else self.block_s + _FORGET * (found - self.block_s)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Decides; `rates` go on being measured."""

    shape: Shape
    rates: Rates

    def seconds(self, blocks: int, missing: int) -> float:
        """Until a chunk is there, of which `missing` codec tokens are not there yet."""
        return SAFETY * (self.rates.block_s * (blocks + self.shape.margin) + self.rates.token_s * missing)

    def _whole(self, blocks: int) -> float:
        return self.seconds(blocks, blocks * self.shape.block_tokens)

    @property
    def sustaining(self) -> int | None:
        """The smallest size that sustains playback; None if the stages are too slow for it at any size."""
        return next((size for size in range(1, MOST + 1) if self._whole(size) <= size * self.shape.block_s), None)

    @property
    def first(self) -> int:
        """Blocks of the first chunk. Where nothing sustains playback, as few as give any sound: waiting would not help."""
        heard = math.floor(self.shape.held_s / self.shape.block_s) + 1
        lasting = self.sustaining
        if lasting is None:
            return heard
        wanted = math.ceil((self._whole(lasting) + self.shape.held_s) / self.shape.block_s)
        return max(heard, wanted)

    def next(self, buffer_s: float | None, missing: list[int]) -> int:
        """Blocks of the next chunk, which begins once it is ready.

        Args:
            buffer_s: Sound that remains to be played; None before the first.
            missing: For chunks of 1, 2, ... blocks, the codec tokens that are not there yet; as long as sizes are possible.
        """
        sizes = range(1, min(MOST, len(missing)) + 1)
        if buffer_s is None:
            return min(self.first, len(missing))
        in_time = [size for size in sizes if self.seconds(size, missing[size - 1]) <= buffer_s]
        if in_time:
            return in_time[-1]
        return next((size for size in reversed(sizes) if not missing[size - 1]), 1)
