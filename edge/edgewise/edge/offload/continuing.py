"""An engine of two: one makes the answer, the other goes on where it is lost, or is asked too when the first is slow.

A generation is a function of model, numeric class, prompt, parameters, seed and position, so that either engine continues what
the other began; inside one numeric class the bytes are the same. The receipt's segments tell who made what.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace

from edgewise.core.errors import EdgewiseError, EngineFault
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.edge.offload.accounts import together
from edgewise.edge.offload.continuation import Begin, Complete, Course, Fail, Move, Side
from edgewise.edge.offload.waiting import Deadline, being_read
from edgewise.engine.api import CacheTier, Engine, EngineInfo, EngineState, EngineStats, MemoryReport, TokenStream
from edgewise.engine.request import FinishReason, GenerateRequest, LinkUse, RequestStats, Segment, TokenChunk, link_of

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`go_on`: a side that is lost is replaced; `hedge_s`: seconds without a token after which both are asked, 0 never."""

    go_on: bool = True
    hedge_s: float = 0.0


class ContinuingEngine:
    """Implements `engine.api.Engine`; looks like the engine of its first side.

    Args:
        first: The side that begins.
        engines: Both engines.
        rules: When the other one is asked.
        why: One sentence for the receipt: why `first` begins.
    """

    def __init__(
        self,
        first: Side,
        engines: Mapping[Side, Engine],
        rules: Rules | None = None,
        *,
        why: str = "The plan's choice.",
    ) -> None:
        self.first = first
        self.engines = engines
        self.rules = rules or Rules()
        self.why = why

    def __repr__(self) -> str:
        return f"ContinuingEngine({self.first} first, {self.engines})"

    @property
    def _engine(self) -> Engine:
        return self.engines[self.first]

    @property
    def state(self) -> EngineState:
        return self._engine.state

    @property
    def info(self) -> EngineInfo | None:
        return self._engine.info

    async def submit(self, request: GenerateRequest) -> ContinuingStream:
        """See `engine.api.Engine.submit`; raises what the last side that was asked raises."""
        stream = ContinuingStream(self, request)
        try:
            await stream.begin()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def memory(self) -> MemoryReport:
        return await self._engine.memory()

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        return await self._engine.clear_cache(tier)


class _Leg:
    """One side's part in an answer: its stream once it was accepted, and the step that is under way."""

    def __init__(self, side: Side, engine: Engine, request: GenerateRequest, why: str) -> None:
        self.side = side
        self.engine = engine
        self.request = request
        self.why = why
        self.stream: TokenStream | None = None
        self.stats: RequestStats | None = None
        self.task: asyncio.Task[TokenChunk | None] | None = None

    async def step(self) -> TokenChunk | None:
        """Hand the request over, and return None; from then on, the next chunk."""
        if self.stream is None:
            self.stream = await self.engine.submit(self.request)
            return None
        try:
            return await self.stream.__anext__()
        except StopAsyncIteration:
            raise EngineFault(f"The {self.side} engine's stream ended without saying why.") from None

    def begin_step(self) -> asyncio.Task[TokenChunk | None]:
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.step(), name=f"{self.request.id}/{self.side}")
        return self.task

    async def close(self) -> None:
        task, self.task = self.task, None
        try:
            await end_task(task)
        finally:  # also where whoever closes it is cancelled meanwhile
            if self.stream is not None:
                await self.stream.aclose()

    @property
    def link(self) -> LinkUse | None:
        return link_of(self.stream) or (None if self.stats is None else self.stats.link)

    def segment(self, offset: int) -> Segment:
        info = self.engine.info
        numeric_class = None if info is None else info.numeric_class
        return Segment(where=self.side, offset=offset, numeric_class=numeric_class, why=self.why)


class ContinuingStream:
    """Implements `engine.api.TokenStream`."""

    def __init__(self, engine: ContinuingEngine, request: GenerateRequest) -> None:
        other = next((side for side in engine.engines if side != engine.first), None)
        self._engine = engine
        self._request = request
        self._course = Course(
            engine.first,
            other,
            max_tokens=request.sampling.max_tokens,
            output=request.output,
            go_on=engine.rules.go_on,
        )
        self._legs: dict[Side, _Leg] = {}
        self._segments: list[Segment] = []
        self._hedged = False
        self._deadline = Deadline(request.deadline_s)
        self._hedge_at = time.monotonic() + engine.rules.hedge_s if engine.rules.hedge_s else None
        self._chunks = self._run()
        self._closed = False
        self._start(Begin(engine.first, engine.why))

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        try:
            return await self._chunks.__anext__()
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            if not being_read(self._chunks):
                await self._chunks.aclose()
            await asyncio.gather(*(leg.close() for leg in self._legs.values()))

    @property
    def link(self) -> LinkUse | None:
        """What all sides have cost so far."""
        link: LinkUse | None = None
        for leg in self._legs.values():
            link = together(link, leg.link, hedged=self._hedged)
        return link

    async def begin(self) -> None:
        """Return once a side has accepted the request."""
        while all(leg.stream is None for leg in self._legs.values()):
            leg, result = await self._next()
            if isinstance(result, EdgewiseError):
                move = await self._broke(leg, result.code, result.message)
                if isinstance(move, Fail):
                    raise result

    # --- sides -------------------------------------------------------------------------------------------------------

    def _start(self, begin: Begin) -> None:
        request = replace(self._request, output=tuple(self._course.output), deadline_s=self._deadline.left())
        self._legs[begin.side] = _Leg(begin.side, self._engine.engines[begin.side], request, begin.why)

    async def _broke(self, leg: _Leg, code: str, message: str) -> Move | None:
        await leg.close()
        move = self._course.broke(leg.side, code, message)
        if isinstance(move, Begin):
            log.warning(
                "answer_goes_on_elsewhere",
                request_id=self._request.id,
                lost=leg.side,
                code=code,
                offset=len(self._course.output),
                now=move.side,
            )
            self._start(move)
        return move

    async def _next(self) -> tuple[_Leg, TokenChunk | EdgewiseError | None]:
        """What happens next on a side that is at work: accepted (None), a chunk, or the error that it ends with."""
        while True:
            legs = [self._legs[side] for side in self._course.running]
            hedging = self._hedge_at is not None and self._course.can_hedge
            if len(legs) == 1 and not hedging and legs[0].task is None:
                return legs[0], await _outcome(legs[0].step())
            tasks = {leg.begin_step(): leg for leg in legs}
            left = None if not hedging or self._hedge_at is None else max(0.0, self._hedge_at - time.monotonic())
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                leg = tasks[task]
                leg.task = None
                return leg, await _outcome(task)
            self._hedged = True
            self._start(self._course.hedge(self._engine.rules.hedge_s))

    # --- chunks ------------------------------------------------------------------------------------------------------

    async def _run(self) -> AsyncGenerator[TokenChunk, None]:
        while True:
            leg, result = await self._next()
            if result is None:
                continue
            if isinstance(result, EdgewiseError) or result.finish == "error":
                end = await self._lost(leg, result)
                if end is not None:
                    yield end
                    return
                continue
            yield await self._deliver(leg, result)
            if result.finish is not None:
                return

    async def _deliver(self, leg: _Leg, chunk: TokenChunk) -> TokenChunk:
        offset = len(self._course.output)
        if chunk.offset != offset:
            raise EngineFault(f"The {leg.side} engine went on at token {chunk.offset} where {offset} were delivered.")
        won = self._course.winner != leg.side
        for side in self._course.tokens(leg.side, chunk.tokens):
            await self._legs[side].close()
        if won:
            self._segments.append(leg.segment(offset))
        leg.stats = chunk.stats or leg.stats
        return replace(chunk, stats=self._stats(chunk.stats))

    async def _lost(self, leg: _Leg, result: TokenChunk | EdgewiseError) -> TokenChunk | None:
        """The last chunk, unless another side goes on."""
        if isinstance(result, EdgewiseError):
            code, message, stats = result.code, result.message, None
        else:
            code, message, stats = result.error_code or "engine_error", result.error_message or "", result.stats
        leg.stats = stats or leg.stats
        match await self._broke(leg, code, message):
            case Fail(code, message):
                return self._end("error", code, message)
            case Complete():
                return self._end("length")
        return None

    def _end(self, finish: FinishReason, code: str | None = None, message: str | None = None) -> TokenChunk:
        known = [leg.stats for leg in self._legs.values() if leg.stats is not None]
        return TokenChunk(
            request_id=self._request.id,
            offset=len(self._course.output),
            tokens=(),
            finish=finish,
            stats=self._stats(known[-1]) if known else None,
            error_code=code,
            error_message=message,
        )

    def _stats(self, stats: RequestStats | None) -> RequestStats | None:
        """One side's account with who made what, and what all sides cost. An answer that one local engine made alone has no
        segments."""
        if stats is None:
            return None
        alone = len(self._legs) == 1 and self._engine.first == "local"
        return replace(
            stats,
            completion_tokens=len(self._course.output),
            segments=() if alone else tuple(self._segments),
            link=self.link,
        )


async def _outcome(step: Awaitable[TokenChunk | None]) -> TokenChunk | EdgewiseError | None:
    try:
        return await step
    except EdgewiseError as error:
        return error
