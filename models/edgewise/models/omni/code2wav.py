"""Code2Wav: codec tokens to sound, chunk by chunk.

Codec tokens become mel frames by flow matching (Lipman et al. 2022), integrated by the 3/8 rule of Runge and Kutta, and these a
waveform by the vocoder. A frame of the flow depends on the blocks around it, on more of them with every evaluation, so a chunk is
computed with `BACK` blocks before it and `AHEAD` blocks behind it, whose results are thrown away. What is lost by that is small
(tests/models/omni/test_code2wav.py, docs/omni.md); it is nothing where the margins cover the whole answer. The vocoder's reach is
bounded, and frames are held back until what they depend on is there: the waveform is exactly that of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from edgewise.kernels.noise import normal
from edgewise.models.omni.config import DiTConfig
from edgewise.models.omni.dit import DiT
from edgewise.models.omni.vocoder import Vocoder
from edgewise.models.omni.voices import Voice

BACK: Final = 2
"""Blocks before a chunk that are computed with it."""
AHEAD: Final = 1
"""Blocks behind a chunk that are computed with it: their codec tokens must be there."""
POINTS: Final = 10
"""In time, ends included."""
GUIDANCE: Final = 0.5
_STREAM: Final = 1 << 32
_EVALUATIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Code2Wav:
    """The loaded networks."""

    dit: DiT
    vocoder: Vocoder

    @property
    def evaluations(self) -> int:
        """Steps of one `Conversion`."""
        return _EVALUATIONS * (POINTS - 1)

    @torch.inference_mode()
    def condition(self, voice: Voice) -> torch.Tensor:
        """See `DiT.condition`."""
        like = self.dit.like
        return self.dit.condition(voice.vector.to(like), voice.sample.to(like))


class Conversion:
    """One chunk on its way from codec tokens to mel frames, an evaluation of the network at a time.

    Attributes:
        blocks: That it gives; `computed` with its margins.
        evaluated: Steps done.
    """

    def __init__(self, net: Code2Wav, codes: torch.Tensor, condition: torch.Tensor, seed: int, span: Span) -> None:
        self.blocks = span.blocks
        self.computed = span.last - span.first
        self.evaluated = 0
        self._net, self._condition, self._span = net, condition, span
        config = net.dit.config
        tokens = config.block // config.repeats
        self._codes = codes[span.first * tokens : span.last * tokens]
        frames = len(self._codes) * config.repeats
        self._x = noise(config, seed, span.first, frames).to(condition)
        self._times = sway(POINTS, condition)
        self._slopes: list[torch.Tensor] = []

    @torch.inference_mode()
    def step(self) -> bool:
        """One evaluation; True once the frames are there."""
        interval, stage = divmod(self.evaluated, _EVALUATIONS)
        begin, end = self._times[interval], self._times[interval + 1]
        length, k = end - begin, self._slopes
        if stage == 0:
            time, state = begin, self._x
        elif stage == 1:
            time, state = begin + length / 3, self._x + length * k[0] / 3
        elif stage == 2:
            time, state = begin + length * 2 / 3, self._x + length * (k[1] - k[0] / 3)
        else:
            time, state = end, self._x + length * (k[0] - k[1] + k[2])
        k.append(self._net.dit.velocity(state, self._codes, self._condition, time, GUIDANCE))
        self.evaluated += 1
        if stage == _EVALUATIONS - 1:
            self._x = self._x + (k[0] + 3 * (k[1] + k[2]) + k[3]) * length / 8
            k.clear()
        return self.evaluated == self._net.evaluations

    @property
    def frames(self) -> torch.Tensor:
        """[blocks * block, mels] once done; fewer where the answer ends within a block."""
        block = self._net.dit.config.block
        begin = (self._span.begin - self._span.first) * block
        return self._x[begin : begin + self.blocks * block]


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks [begin, begin + blocks) of an answer, computed together with those in [first, last)."""

    begin: int
    blocks: int
    first: int
    last: int


class Wave:
    """The sound of one answer.

    Args:
        condition: `Code2Wav.condition`'s.
        seed: Decides the noise that the frames grow from; frame i begins with the same whatever the chunks.
        back, ahead: Margins in blocks.
    """

    def __init__(
        self, net: Code2Wav, condition: torch.Tensor, seed: int, *, back: int = BACK, ahead: int = AHEAD
    ) -> None:
        self._net, self._condition, self._seed = net, condition, seed
        self._back, self._ahead = back, ahead
        self._codes: list[int] = []
        self._ended = False
        self._mel = torch.empty(0, net.dit.config.mels, device=condition.device, dtype=condition.dtype)
        self._dropped = 0
        self._sounded = 0
        self.blocks_done = 0

    def add(self, codes: Sequence[int]) -> None:
        """Codec tokens that follow."""
        self._codes += codes

    def end(self) -> None:
        """No more follow."""
        self._ended = True

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def ready(self) -> int:
        """Blocks that could be converted now."""
        tokens = self._net.dit.config.block // self._net.dit.config.repeats
        if self._ended:
            return -(-len(self._codes) // tokens) - self.blocks_done
        return max(0, len(self._codes) // tokens - self._ahead - self.blocks_done)

    def missing(self, blocks: int) -> int:
        """Codec tokens that must come before so many blocks are ready."""
        tokens = self._net.dit.config.block // self._net.dit.config.repeats
        return 0 if self._ended else max(0, (self.blocks_done + blocks + self._ahead) * tokens - len(self._codes))

    @property
    def finished(self) -> bool:
        """Whether all sound is out."""
        return self._ended and self.ready == 0

    def begin(self, blocks: int) -> Conversion:
        """The next `blocks` <= `ready` blocks."""
        begin = self.blocks_done
        span = Span(begin, blocks, max(0, begin - self._back), begin + blocks + self._ahead)
        codes = torch.tensor(self._codes, dtype=torch.int64, device=self._condition.device)
        return Conversion(self._net, codes, self._condition, self._seed, span)

    @torch.inference_mode()
    def sound(self, conversion: Conversion) -> torch.Tensor:
        """[samples] float32 that a finished conversion adds: those whose surroundings are known, and all at the end."""
        self._mel = torch.cat([self._mel, conversion.frames])
        self.blocks_done += conversion.blocks
        reach, hop = self._net.vocoder.reach, self._net.vocoder.config.hop
        known = self._dropped + len(self._mel)
        until = known if self.finished else max(self._sounded, known - reach)
        if until == self._sounded:
            return torch.empty(0)
        samples = self._net.vocoder(self._mel)
        begin, self._sounded = self._sounded - self._dropped, until
        made = samples[begin * hop : (until - self._dropped) * hop]
        drop = max(0, until - reach - self._dropped)
        self._mel, self._dropped = self._mel[drop:], self._dropped + drop
        return made.float().cpu()


def noise(config: DiTConfig, seed: int, first: int, frames: int) -> torch.Tensor:
    """[frames, mels] from block `first` on: a function of seed and place alone."""
    blocks = -(-frames // config.block)
    count = config.block * config.mels
    parts = [torch.from_numpy(normal(seed, count, stream=_STREAM + first + at)) for at in range(blocks)]
    return torch.cat(parts).view(-1, config.mels)[:frames]


def sway(points: int, like: torch.Tensor) -> torch.Tensor:
    """[points] from 0 to 1, closer together at the beginning (F5-TTS, Chen et al. 2024, with coefficient -1)."""
    even = torch.linspace(0, 1, points, device=like.device, dtype=like.dtype)
    return even - (torch.cos(math.pi / 2 * even) - 1 + even)
