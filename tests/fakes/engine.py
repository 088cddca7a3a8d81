"""A test double of `engine.api.Engine`: deterministic, in process, with pages to count and faults to order.

Without a script, token i of an answer depends on prompt, seed (not at temperature 0) and i alone, as a real engine's does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from edgewise.core.errors import EdgewiseError, QueueFull
from edgewise.engine.api import CacheTier, EngineInfo, EngineState, EngineStats, MemoryReport
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, TokenChunk, TokenLogprobs

PAGE_TOKENS = 16
Script = Callable[[GenerateRequest], Sequence[int]]


@dataclass(frozen=True)
class Fault:
    """Break request number `request` (from 0) before token `at`."""

    request: int
    at: int
    code: str = "engine_error"
    message: str = "The engine broke as ordered."


@dataclass
class FakeEngine:
    """Attributes:
    script: Tokens of a request's answer; the answer ends with "stop" at a stop token, else with "length".
    chunk_tokens: Tokens per chunk.
    delay_s: Pause before every chunk (0 yields to the loop).
    hold: Cleared, no chunk leaves; set, they do.
    fault: A break to order.
    refuse: Raised by every `submit`.
    """

    vocab_size: int = 512
    max_context: int = 4096
    num_pages: int = 1024
    pages_unfilled: float = 0.0
    chunk_tokens: int = 1
    delay_s: float = 0.0
    script: Script | None = None
    fault: Fault | None = None
    refuse: EdgewiseError | None = None
    max_open: int = 256
    state: EngineState = "ready"
    info_known: bool = True
    quantize: str = "none"
    requests: list[GenerateRequest] = field(default_factory=list)
    open: dict[str, FakeStream] = field(default_factory=dict)
    cleared: list[CacheTier | None] = field(default_factory=list)
    aborted: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.hold.set()

    @property
    def info(self) -> EngineInfo | None:
        if not self.info_known:
            return None
        return EngineInfo(
            model="fake",
            digest="sha256:" + "0" * 64,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            dtype="float32",
            kv_dtype="int8",
            quantize=self.quantize,
            device="cpu",
            numeric_class="fake/float32/int8/none/cpu",
            batch_invariant=True,
            num_pages=self.num_pages,
            page_tokens=PAGE_TOKENS,
            load_s=0.0,
            pid=1,
        )

    @property
    def pages_used(self) -> int:
        return sum(stream.pages for stream in self.open.values())

    async def submit(self, request: GenerateRequest) -> FakeStream:
        if self.refuse is not None:
            raise self.refuse
        if len(self.open) >= self.max_open:
            raise QueueFull("The queue is full: try again later.", retry_after_s=2.0)
        stream = FakeStream(self, request, number=len(self.requests))
        self.requests.append(request)
        self.open[request.id] = stream
        return stream

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.open),
            pages_total=self.num_pages,
            pages_free=self.num_pages - self.pages_used,
            pages_unfilled=self.pages_unfilled,
            aborted=self.aborted,
        )

    async def memory(self) -> MemoryReport:
        return MemoryReport(budget_bytes=1 << 30, available_bytes=1 << 29, booked={"weights": 1 << 20, "kv": 1 << 10})

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        self.cleared.append(tier)
        return {"device": 3, "host": 2} if tier is None else {tier: 2}


class FakeStream:
    """The answer to one request."""

    def __init__(self, engine: FakeEngine, request: GenerateRequest, *, number: int) -> None:
        self._engine = engine
        self._request = request
        self._number = number
        self._answer = plain_answer(request, engine)
        self._sent = 0
        self.closed = False
        self.finished = False

    @property
    def pages(self) -> int:
        return -(-(len(self._request.prompt) + self._sent) // PAGE_TOKENS)

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        if self.closed or self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(self._engine.delay_s)
        await self._engine.hold.wait()
        fault = self._engine.fault
        if fault is not None and fault.request == self._number and self._sent >= fault.at:
            return self._end("error", (), error=fault)
        tokens = tuple(self._answer[self._sent : self._sent + self._engine.chunk_tokens])
        if self._sent + len(tokens) < len(self._answer):
            return self._chunk(tokens)
        stopped = bool(tokens) and tokens[-1] in self._request.sampling.stop_token_ids
        return self._end("stop" if stopped else "length", tokens)

    async def aclose(self) -> None:
        if not self.closed and not self.finished:
            self._engine.aborted += 1
        self.closed = True
        self._engine.open.pop(self._request.id, None)

    def _chunk(self, tokens: tuple[int, ...], **last: object) -> TokenChunk:
        offset = self._sent
        if offset == 0:  # as the engine does with the first tokens
            last.setdefault("stats", self._stats(len(tokens)))
        self._sent += len(tokens)
        return TokenChunk(
            request_id=self._request.id,
            offset=offset,
            tokens=tokens,
            logprobs=self._logprobs(tokens, offset),
            **last,  # type: ignore[arg-type]
        )

    def _end(self, finish: FinishReason, tokens: tuple[int, ...], error: Fault | None = None) -> TokenChunk:
        self.finished = True
        self._engine.open.pop(self._request.id, None)
        return self._chunk(
            tokens,
            finish=finish,
            stats=self._stats(self._sent + len(tokens)),
            error_code=None if error is None else error.code,
            error_message=None if error is None else error.message,
        )

    def _stats(self, completion_tokens: int) -> RequestStats:
        return RequestStats(
            prompt_tokens=len(self._request.prompt),
            cached_tokens=0,
            completion_tokens=completion_tokens,
            queued_s=0.001,
            prefill_s=0.002,
            decode_s=0.003,
        )

    def _logprobs(self, tokens: tuple[int, ...], offset: int) -> tuple[TokenLogprobs, ...] | None:
        width = self._request.sampling.top_logprobs
        if width is None:
            return None
        return tuple(
            TokenLogprobs(
                token=token,
                logprob=-0.25 - (offset + index) / 64,
                top=tuple(
                    ((token + rank) % self._engine.vocab_size, -0.25 - rank - (offset + index) / 64)
                    for rank in range(width)
                ),
            )
            for index, token in enumerate(tokens)
        )


def plain_answer(request: GenerateRequest, engine: FakeEngine) -> list[int]:
    """The whole answer: scripted, or letters drawn from a hash; cut at the first stop token and at max_tokens."""
    sampling = request.sampling
    drawn = engine.script(request) if engine.script is not None else _letters(request)
    answer: list[int] = []
    for token in drawn[: sampling.max_tokens]:
        answer.append(token)
        if token in sampling.stop_token_ids and len(answer) > sampling.min_tokens:
            break
    return answer


def _letters(request: GenerateRequest) -> list[int]:
    """Up to 64 printable ASCII bytes that depend on prompt, seed and position."""
    sampling = request.sampling
    key = f"{request.prompt}/{sampling.seed if sampling.temperature else 'greedy'}"
    block = b"".join(hashlib.sha256(f"{key}/{part}".encode()).digest() for part in range(2))
    return [32 + byte % 95 for byte in block]
