"""One spoken answer on its way through the stages: rows of the Thinker, codec tokens, sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from edgewise.core.errors import EngineFault
from edgewise.engine.omni.chunks import MOST, Chunking
from edgewise.engine.omni.player import Player
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.sequence import Sequence
from edgewise.engine.speech import SpeechStats
from edgewise.models.omni.code2wav import Conversion, Wave
from edgewise.models.omni.config import TalkerConfig

_BEYOND: Final = 2 * MOST
"""Blocks of codec tokens that the Talker may be ahead of Code2Wav."""
_FORBIDDEN: Final = -100.0
SAMPLING: Final[Mapping[str, float]] = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
"""How codec tokens are drawn: as the model's authors do."""


@dataclass(frozen=True, slots=True, eq=False)
class MarkRows:
    """Rows of the Thinker's embedding that stand before an answer in a voice, behind it, and after that: [width] each."""

    start: torch.Tensor
    end: torch.Tensor
    pad: torch.Tensor


class Answer:
    """Attributes:
    request: As it was asked, its media without their samples.
    sequence: The Talker's, whose prompt stands beside the Thinker's prompt.
    written: Tokens of text that have been told; `samples` of sound, in so many `chunks`.
    text_end: The Thinker's last chunk, once it is there: told when all has been said.
    conversion: The chunk that Code2Wav is at, begun at `converting_since`.
    deadline_at: Engine clock, or None.
    broken: Whether the Talker could not go on, for no logit of its was finite: the answer ends with an error.
    """

    def __init__(
        self,
        request: GenerateRequest,
        config: TalkerConfig,
        marks: MarkRows,
        wave: Wave,
        chunking: Chunking,
        *,
        most_codes: int,
        arrival: int,
        now: float,
        sampling: Mapping[str, float] = SAMPLING,
    ) -> None:
        assert request.speech is not None
        self.speech = request.speech
        places = tuple(replace(one, content=b"") for one in request.media)  # the Talker asks only where they are
        self.request = request = replace(request, media=places)
        self.sequence = Sequence.of(_talk(request, config, most_codes, sampling), arrival=arrival, now=now)
        self.wave = wave
        self.chunking = chunking
        self.player = Player(asked=now)
        self.text_end: TokenChunk | None = None
        self.conversion: Conversion | None = None
        self.converting_since = 0.0
        self.written = 0
        self.samples = 0
        self.chunks = 0
        self.cut = False
        self.broken = False
        self.deadline_at = None if request.deadline_s is None else now + request.deadline_s
        self._marks = marks
        self._ends = config.ends
        self._prompt: list[torch.Tensor] = []
        self._heard = 0
        self._reply: list[torch.Tensor] = []
        self._first_code: float | None = None
        self._last_sound = now

    # --- the Thinker's side -----------------------------------------------------------------------------------------------

    def think(self, start: int, rows: torch.Tensor) -> None:
        """Rows [n, width] of tokens from `start` on; those that were there before (computed again) are left out.

        Raises:
            EngineFault: Tokens before `start` have never been thought: their pages came from a cache.
        """
        if start > self._heard:
            raise EngineFault(
                f"The Talker was given what was thought from token {start} on and knows only the first {self._heard}: the pages "
                "of a spoken answer came from a cache."
            )
        fresh = rows[max(0, self._heard - start) :]
        if not len(fresh):
            return
        prompt = len(self.request.prompt)
        split = max(0, prompt - self._heard)
        if split:
            self._prompt.append(fresh[:split])
        self._reply += fresh[split:].unbind()
        self._heard += len(fresh)

    # --- the Talker's side ------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens that the Talker needs room for."""
        return len(self.sequence.request.prompt) + self.sequence.request.sampling.max_tokens

    @property
    def computable(self) -> int:
        """Tokens that the Talker could compute now."""
        if self.broken or self.wave.ended or self.wave.ready > _BEYOND:
            return 0
        start, prompt = self.sequence.computed, len(self.request.prompt)
        known = self._heard if self._heard < prompt else prompt + 1 + len(self._reply)
        if self.text_end is not None and self._reply:
            known = len(self.sequence.tokens)
        return max(0, min(known, len(self.sequence.tokens)) - start)

    def rows(self, start: int, count: int) -> torch.Tensor:
        """[count, width], what goes into the Talker with its tokens from `start` on."""
        prompt = len(self.request.prompt)
        parts: list[torch.Tensor] = []
        if start < prompt:
            parts += torch.cat(self._prompt)[start : start + count].unbind()
        for place in range(max(start, prompt), start + count):
            parts.append(self._marks.start if place == prompt else self._row(place - prompt - 1))
        if start + count >= prompt:
            self._prompt = []
        return torch.stack(parts)

    def _row(self, index: int) -> torch.Tensor:
        if index < len(self._reply):
            return self._reply[index]
        return self._marks.end if index == len(self._reply) else self._marks.pad

    def say(self, code: int, now: float) -> None:
        """The Talker has drawn a token."""
        self._first_code = now if self._first_code is None else self._first_code
        if code in self._ends:
            self.wave.end()
            return
        self.sequence.tokens.append(code)
        self.wave.add([code])
        if self.sequence.generated >= self.sequence.request.sampling.max_tokens:
            self.cut = True
            self.wave.end()

    # --- Code2Wav's side --------------------------------------------------------------------------------------------------

    def wanted(self, now: float) -> int:
        """Blocks of the next chunk; 0 where nothing is left to say."""
        sizes = self.wave.ready if self.wave.ended else 2 * MOST
        if not sizes:
            return 0
        return self.chunking.next(self.player.buffer(now), [self.wave.missing(size) for size in range(1, sizes + 1)])

    def sound(self, samples: int, rate: int, now: float) -> None:
        """So many more have been given."""
        self.samples += samples
        self.chunks += 1
        self.player.give(samples / rate, now)
        self._last_sound = now

    @property
    def silent(self) -> bool:
        """Whether there is nothing to say: the text ended before a token that is spoken."""
        return self.text_end is not None and not self._reply

    @property
    def finished(self) -> bool:
        """Whether text and sound are complete."""
        return self.text_end is not None and (self.silent or (self.wave.finished and self.conversion is None))

    def stats(self) -> SpeechStats:
        """Of what has been said so far."""
        speech_s = self.player.played
        began = self._last_sound if self._first_code is None else self._first_code
        return SpeechStats(
            voice=self.speech.voice,
            first_audio_s=self.player.first_audio_s,
            speech_s=speech_s,
            real_time_factor=(self._last_sound - began) / speech_s if speech_s else 0.0,
            worst_gap_s=self.player.worst_gap,
            gaps=self.player.gaps,
            chunks=self.chunks,
            codec_tokens=self.sequence.generated,
            cut=self.cut,
        )


def _talk(
    request: GenerateRequest, config: TalkerConfig, most_codes: int, sampling: Mapping[str, float]
) -> GenerateRequest:
    """The Talker's request. Media keep their places, for positions."""
    assert request.speech is not None
    drawn = SamplingParams(
        max_tokens=most_codes,
        temperature=sampling["temperature"],
        top_k=int(sampling["top_k"]),
        top_p=sampling["top_p"],
        repetition_penalty=sampling["repetition_penalty"],
        seed=request.speech.seed,
        logit_bias=dict.fromkeys(config.soundless, _FORBIDDEN),
    )
    prompt = (*[config.codec_mask] * len(request.prompt), config.codec_pad, config.codec_start)
    return GenerateRequest(id=request.id, prompt=prompt, sampling=drawn, media=request.media)
