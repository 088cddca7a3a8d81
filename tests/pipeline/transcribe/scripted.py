"""A model that hears what a script says: the engine's side of a transcription without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from edgewise.engine.request import GenerateRequest, RequestStats, TokenChunk, TokenLogprobs
from edgewise.models.whisper.config import WhisperConfig, WhisperTokens
from edgewise.pipeline.listener import ServedListener

END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE = 100, 101, 102, 103, 104, 105
PREVIOUS, NO_SPEECH, NO_TIMES, TIME = 106, 107, 108, 109
CONFIG = WhisperConfig(
    vocab_size=TIME + 1501,
    width=8,
    mels=80,
    encoder_layers=1,
    encoder_heads=1,
    encoder_inner=8,
    decoder_layers=1,
    decoder_heads=1,
    decoder_inner=8,
    frames=1500,
    max_text=40,
)
TOKENS = WhisperTokens(
    end=END,
    start=START,
    previous=PREVIOUS,
    no_speech=NO_SPEECH,
    no_times=NO_TIMES,
    first_time=TIME,
    languages={"en": ENGLISH, "de": GERMAN},
    transcribe=TRANSCRIBE,
    translate=TRANSLATE,
    suppressed=(),
    suppressed_first=(),
)


def at(seconds: float) -> int:
    """The token of a time."""
    return TIME + round(seconds * 50)


@dataclass(frozen=True)
class Said:
    """What is drawn for one request; the end token is added. `logprob`: of each token. `frames`: of words that were asked for."""

    tokens: tuple[int, ...]
    logprob: float = -0.1
    top: tuple[tuple[int, float], ...] = ()
    frames: tuple[int, ...] = ()


class Letters:
    """A tokenizer of one token a letter: id 1 is "a"."""

    def encode(self, text: str, **_options: Any) -> list[int]:
        return [ord(letter) - 96 for letter in text if letter.isalpha()]

    def decode(self, ids: Any) -> str:
        return " " + "".join(chr(96 + id) for id in ids)


class _Stream:
    def __init__(self, chunks: list[TokenChunk], gate: asyncio.Event | None) -> None:
        self._chunks = chunks
        self._gate = gate
        self.closed = False

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        if self._gate is not None:
            await self._gate.wait()
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop(0)

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class ScriptedEngine:
    """Answers each request with what `script` says. `gate`: answers come once it is set."""

    script: Callable[[GenerateRequest], Said]
    gate: asyncio.Event | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    streams: list[_Stream] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    info: Any = None
    state: str = "ready"

    async def submit(self, request: GenerateRequest) -> _Stream:
        self.requests.append(request)
        said = self.script(request)
        tokens = (*said.tokens, END)
        stats = RequestStats(
            prompt_tokens=len(request.prompt),
            cached_tokens=0,
            completion_tokens=len(tokens),
            queued_s=0.0,
            prefill_s=0.1,
            decode_s=0.2,
        )
        chunk = TokenChunk(
            request_id=request.id,
            offset=0,
            tokens=tokens,
            logprobs=tuple(TokenLogprobs(token=one, logprob=said.logprob, top=said.top) for one in tokens),
            finish="stop",
            stats=stats,
            frames=said.frames,
        )
        stream = _Stream([chunk], self.gate)
        self.streams.append(stream)
        self.asked.set()
        return stream


def listener(engine: Any, tokens: WhisperTokens = TOKENS) -> ServedListener:
    tokenizer: Any = Letters()
    return ServedListener(
        name="scripted", engine=engine, tokenizer=tokenizer, config=CONFIG, tokens=tokens, digest="sha256:0", created=0
    )
