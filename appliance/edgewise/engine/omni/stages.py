"""The stages behind the Thinker: the Talker, which writes codec tokens, and Code2Wav, which makes them heard.

They take turns: a turn is one step of the Talker for all answers at once, or one evaluation of Code2Wav for one answer. The
answer whose sound runs out first has the next turn, those without any sound before all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch

from edgewise.core.errors import InvalidRequest, QueueFull
from edgewise.engine.omni.answer import SAMPLING, Answer, MarkRows
from edgewise.engine.omni.chunks import Chunking, Rates, Shape
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence as Line
from edgewise.engine.spans import Spans
from edgewise.engine.speech import Sound
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer
from edgewise.models.multimodal.protocol import StepMedia
from edgewise.models.omni.code2wav import AHEAD, BACK, Code2Wav, Wave
from edgewise.models.omni.config import SAMPLE_RATE, OmniConfig
from edgewise.models.omni.talker import Talker
from edgewise.models.omni.voices import Voice

MOST_CODES: Final = 4096
"""Codec tokens of an answer: 82 s at 50 a second."""
MOST_ANSWERS: Final = 64
"""In work at once: what was thought of each is kept until it has been said."""
_LEAST_CODES: Final = 512
_BEFORE: Final = 2
"""Codec tokens that stand before what is said."""
_PREFILL: Final = 512
"""Tokens of the Talker's prompts in one turn."""
_LARGEST: Final = 32767
_RETRY_S: Final = 5.0
_SMOOTH: Final = 0.2


class SpeechStages:
    """Args:
    table: The Thinker's embedding table.
    kv: The Talker's cache.
    sampling: How codec tokens are drawn.

    Attributes:
        most_codes: Codec tokens of an answer.
        most_answers: Answers in work; one more is refused.
    """

    def __init__(
        self,
        config: OmniConfig,
        talker: Talker,
        code2wav: Code2Wav,
        voices: Mapping[str, Voice],
        table: torch.Tensor,
        kv: list[KVLayer],
        *,
        sampling: Mapping[str, float] = SAMPLING,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.voices = voices
        self.most_codes = MOST_CODES
        self.most_answers = MOST_ANSWERS
        self._net = code2wav
        self._talker = talker
        self._table = table
        self._runner = Runner(talker, kv, table.device)
        self._pages = list(range(kv[0].k.shape[0]))
        self._conditions: dict[str, torch.Tensor] = {}
        self._sampling = sampling
        self._now = now
        self._answers: dict[str, Answer] = {}
        self._arrivals = 0
        self._load = 1.0
        self._last_turn: float | None = None
        shape = Shape(
            block_s=config.dit.block / config.frames_per_second,
            block_tokens=config.block_tokens,
            margin=BACK + AHEAD,
            held_s=code2wav.vocoder.reach / config.frames_per_second,
        )
        self._chunking = Chunking(shape, self._measured(shape))

    def _measured(self, shape: Shape) -> Rates:
        """What the stages take with nothing beside them: a token, an evaluation on a chunk of two blocks, and its sound."""
        blocks = 2 + shape.margin
        codes = torch.zeros(blocks * shape.block_tokens, dtype=torch.int64, device=self._table.device)
        condition = self._condition(next(iter(self.voices.values())))
        frames = torch.zeros(blocks * self.config.dit.block, self.config.dit.mels, device=self._table.device)
        times = torch.zeros((), device=self._table.device)
        sequence = Line.of(
            GenerateRequest(id="", prompt=(self.config.talker.codec_mask,), sampling=SamplingParams(max_tokens=1)),
            arrival=0,
            now=0.0,
        )
        sequence.pages = self._pages[:1]
        row = StepMedia(torch.zeros(1, dtype=torch.int64, device=self._table.device), self._table[:1])
        for _ in range(2):  # the first one warms up
            began = self._now()
            self._runner.run([Work(sequence, 0, 1, sample=True)], row)
            drawn = self._now()
            with torch.inference_mode():
                self._net.dit.velocity(frames, codes, condition, times, 0.0).cpu()
                evaluated = self._now()
                self._net.vocoder(frames).cpu()
            ended = self._now()
        seconds = self._net.evaluations * (evaluated - drawn) + ended - evaluated
        return Rates(token_s=drawn - began, block_s=seconds / blocks)

    # --- answers ----------------------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> None:
        """Begin to follow a request that asks for speech.

        Raises:
            InvalidRequest: An unknown voice, or a prompt or a film too long to be spoken after.
            QueueFull: Too many answers wait to be spoken.
        """
        assert request.speech is not None
        if len(self._answers) >= self.most_answers:
            raise QueueFull(
                f"{self.most_answers} spoken answers are in work, which is the most: try again later, or ask for text alone.",
                retry_after_s=_RETRY_S,
            )
        voice = self.voices.get(request.speech.voice)
        if voice is None:
            raise InvalidRequest(
                f"'audio.voice' is '{request.speech.voice}': this model has {', '.join(self.voices)}.",
                param="audio.voice",
            )
        table, talker = self._table, self.config.talker
        marks = MarkRows(table[voice.start], table[talker.text_end], table[talker.text_pad])
        wave = Wave(self._net, self._condition(voice), request.speech.seed)
        length, last = len(request.prompt), talker.decoder.max_position
        reached = Spans(request.media, length).next_position  # a film takes more positions than tokens
        codes = min(self.most_codes, min(self._total, last) - length - _BEFORE, last - reached - _BEFORE)
        if codes < min(self.most_codes, _LEAST_CODES):
            raise InvalidRequest(
                f"The prompt has {length} tokens and reaches position {reached}, which leaves the Talker room for "
                f"{max(0, codes)} codec tokens of the answer: shorten it, send a shorter film, or ask for text alone.",
                param="messages",
            )
        answer = Answer(
            request,
            talker,
            marks,
            wave,
            self._chunking,
            most_codes=codes,
            arrival=self._arrivals,
            now=self._now(),
            sampling=self._sampling,
        )
        self._arrivals += 1
        self._answers[request.id] = answer

    def get(self, request_id: str) -> Answer | None:
        return self._answers.get(request_id)

    def remove(self, request_id: str) -> None:
        """Its pages are free again. Unknown ids are ignored."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._pages += answer.sequence.pages

    @property
    def answers(self) -> Iterable[Answer]:
        return tuple(self._answers.values())

    @property
    def _total(self) -> int:
        held = sum(len(answer.sequence.pages) for answer in self._answers.values())
        return (len(self._pages) + held) * PAGE_TOKENS

    def _condition(self, voice: Voice) -> torch.Tensor:
        if voice.name not in self._conditions:
            self._conditions[voice.name] = self._net.condition(voice)
        return self._conditions[voice.name]

    def hear(self, work: Sequence[Work], tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """What a step of the Thinker thought (`engine.runner.Observer`)."""
        first = 0
        for item in work:
            answer = self._answers.get(item.sequence.id)
            part = slice(first, first + item.count)
            first += item.count
            if answer is not None:
                answer.think(item.start, hidden[part] + self._worded(tokens[part]))

    def _worded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Their embeddings; nothing for placeholders, which have none."""
        seen = torch.stack([tokens == place for place in self.config.placeholders.values()])
        return self._table[tokens] * ~seen.any(0)[:, None]

    # --- turns ------------------------------------------------------------------------------------------------------------

    def turn(self) -> tuple[bool, TokenChunk | None]:
        """One turn: whether there was anything to do, and the sound that it made."""
        began = self._now()
        for answer in sorted(self._answers.values(), key=lambda one: self._urgency(one, began)):
            if answer.conversion is None and (blocks := answer.wanted(began)) and not answer.wave.missing(blocks):
                answer.conversion, answer.converting_since = answer.wave.begin(blocks), began
            if answer.conversion is not None:
                sound = self._convert(answer)
                self._turned(began)
                return True, sound
            if self._ready_to_talk(answer):
                self._talk(began)
                self._turned(began)
                return True, None
        self._last_turn = None
        return False, None

    def _urgency(self, answer: Answer, now: float) -> tuple[float, int]:
        buffer = answer.player.buffer(now)
        return (float("-inf") if buffer is None else buffer, answer.sequence.arrival)

    def _turned(self, began: float) -> None:
        """Note how much longer than its turns speaking takes, since others have theirs between them."""
        ended = self._now()
        if self._last_turn is not None and ended > began:
            self._load += _SMOOTH * ((ended - self._last_turn) / (ended - began) - self._load)
            self._load = max(1.0, self._load)
        self._last_turn = ended

    def _ready_to_talk(self, answer: Answer) -> bool:
        if not answer.computable:
            return False
        if not answer.sequence.pages:
            needed = -(-answer.length // PAGE_TOKENS)
            if needed > len(self._pages) or self._earlier_waits(answer):
                return False
            answer.sequence.pages = [self._pages.pop() for _ in range(needed)]
        return True

    def _earlier_waits(self, answer: Answer) -> bool:
        """Whether an answer that came before it has no room yet: short ones do not overtake it for ever."""
        arrival = answer.sequence.arrival
        others = (one for one in self._answers.values() if one.sequence.arrival < arrival)
        return any(one.computable and not one.sequence.pages for one in others)

    def _talk(self, began: float) -> None:
        """One step of the Talker, for all answers that it can go on with: those that speak first, then prompts by urgency."""
        work: list[Work] = []
        rows: list[torch.Tensor] = []
        answers: list[Answer] = []
        room = _PREFILL
        for answer in sorted(self._answers.values(), key=lambda one: (one.computable > 1, *self._urgency(one, began))):
            sequence = answer.sequence
            count = min(answer.computable, room)
            if not count or not self._ready_to_talk(answer):
                continue
            room -= count
            start = sequence.computed
            work.append(Work(sequence, start, count, sample=start + count == len(sequence.tokens)))
            rows.append(answer.rows(start, count))
            answers.append(answer)
        values = torch.cat(rows)
        every = torch.arange(len(values), device=values.device)
        draws = self._runner.run(work, StepMedia(every, values))
        now = self._now()
        for answer, item, drawn in zip(answers, work, draws, strict=True):
            answer.sequence.computed += item.count
            for draw in drawn:
                if draw.broken or draw.stuck:
                    answer.broken = True
                else:
                    answer.say(draw.token, now)
        if all(item.count == 1 for item in work):
            self._chunking.rates.token((now - began) * self._load)

    def _convert(self, answer: Answer) -> TokenChunk | None:
        """One evaluation; the sound of the chunk after its last."""
        conversion = answer.conversion
        assert conversion is not None
        if not conversion.step():
            return None
        answer.conversion = None
        samples = answer.wave.sound(conversion)
        now = self._now()
        self._chunking.rates.chunk(conversion.computed, now - answer.converting_since)
        if not len(samples):
            return None
        start = answer.samples
        answer.sound(len(samples), SAMPLE_RATE, now)
        whole = (samples.clamp(-1, 1) * _LARGEST).round().to(torch.int16)
        return TokenChunk(
            request_id=answer.request.id,
            offset=0,
            tokens=(),
            sound=Sound(start=start, samples=whole.numpy().tobytes(), rate=SAMPLE_RATE),
        )
