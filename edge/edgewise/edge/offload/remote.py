"""The cloud's token engine with the interface of the local one: jobs go out over a `Transport`, chunks come back in order.

A stream outlives its link. Whatever breaks on the way, it asks for what follows the last token that it has, with growing pauses,
until `patience_s` have passed without a sign of life; what arrives twice is dropped, and at the end count and hash of all tokens
must be those that the cloud names.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger
from edgewise.edge.offload.accounts import measured_stats, told_stats, told_warnings
from edgewise.edge.offload.book import Fresh, StreamBook, TextBook, TokenBook
from edgewise.edge.offload.follow import JobFollower, Patience, Road
from edgewise.edge.offload.jobs import generate_job
from edgewise.edge.offload.stream import JobStream, failure
from edgewise.edge.offload.text import TextTokens
from edgewise.edge.offload.waiting import Deadline
from edgewise.engine.api import CacheTier, EngineInfo, EngineState, EngineStats, MemoryReport
from edgewise.engine.request import (
    FinishReason,
    GenerateRequest,
    LinkUse,
    RequestStats,
    Segment,
    TokenChunk,
    TokenLogprobs,
)
from edgewise.wire.messages import Capability, Chunk, Final, JobRequest
from edgewise.wire.stream_log import Place

log = get_logger(__name__)


class RemoteEngine:
    """Implements `engine.api.Engine`.

    Args:
        road: The way there.
        capability: What the cloud said of the model.
        vocab_size: Of the model's tokenizer.
        patience: How long a lost link is waited for.
        text: Makes tokens of texts; needed for back ends that know no tokens.
        why: One sentence for the receipt; None says that the plan chose it.
    """

    def __init__(
        self,
        road: Road,
        capability: Capability,
        *,
        vocab_size: int,
        patience: Patience | None = None,
        text: TextTokens | None = None,
        why: str | None = None,
    ) -> None:
        self.road = road
        self.capability = capability
        self.patience = patience or Patience()
        self.text = text
        self.why = why or f"The plan chose the {road.place}."
        self._vocab_size = vocab_size
        self._running = 0

    def __repr__(self) -> str:
        return f"RemoteEngine({self.capability.model}, running={self._running})"

    @property
    def state(self) -> EngineState:
        """An engine elsewhere is always there to be asked; whether the link is up, its health says."""
        return "ready"

    @property
    def info(self) -> EngineInfo:
        """As far as the cloud tells: it has no process, pages or load time of ours."""
        told = self.capability
        precision = told.precision or {}
        return EngineInfo(
            model=told.model,
            digest=told.digest or "",
            vocab_size=self._vocab_size,
            max_context=told.context or 0,
            dtype=precision.get("dtype", "unknown"),
            kv_dtype=precision.get("kv_dtype", "unknown"),
            quantize=precision.get("quantize", "unknown"),
            device=self.road.place,
            numeric_class=told.numeric_class or "unknown",
            batch_invariant=False,
            num_pages=0,
            page_tokens=0,
            load_s=0.0,
            pid=0,
        )

    async def submit(self, request: GenerateRequest) -> RemoteStream:
        """See `engine.api.Engine.submit`.

        Raises:
            LinkLost: The cloud was not reached within `patience.submit_s`.
            EdgewiseError: What the cloud answers: `QueueFull`, `NotAuthenticated`, `ModelNotFound`, ...
        """
        job = generate_job(request, self.capability, self.road.device, self.text, privacy=self.road.privacy)
        follower = JobFollower(self.road, self.patience, request.deadline_s)
        await follower.submit(job)
        self._running += 1
        return RemoteStream(self, request, job.key, follower)

    def closed(self) -> None:
        """A stream has ended; it tells so itself, because nothing here may keep one alive that its reader has dropped."""
        self._running -= 1

    async def stats(self) -> EngineStats:
        """What this device has running there; the rest is the cloud's own affair."""
        return EngineStats(running=self._running)

    async def memory(self) -> MemoryReport:
        """Nothing of this device's memory is booked by it."""
        return MemoryReport(budget_bytes=0, available_bytes=0)

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        """No cache of ours is there; the cloud separates its own by key."""
        del tier
        return {}


class RemoteStream(JobStream[TokenChunk]):
    """Implements `engine.api.TokenStream`; as for the local one, a read that is cancelled cancels the request."""

    CANCELS = frozenset({"error"})

    def __init__(self, engine: RemoteEngine, request: GenerateRequest, key: str, follower: JobFollower) -> None:
        super().__init__(follower)
        self._engine = engine
        self._request = request
        self._key = key
        follower.again = self._again
        self._book: StreamBook = (
            TextBook(request.output, engine.text)
            if engine.capability.reads == "text" and engine.text is not None
            else TokenBook(request.output)
        )
        self._deadline = Deadline(request.deadline_s)
        self._started = time.monotonic()
        self._first: float | None = None
        self._told: RequestStats | None = None
        self._warnings: tuple[str, ...] = ()
        self._numeric_class = engine.capability.numeric_class
        self._price: float | None = None
        self._delivered = len(request.output)

    @property
    def link(self) -> LinkUse:
        """What it has cost so far; the price is reckoned until the cloud names it."""
        up, down = self._follower.traffic
        return LinkUse(up_bytes=up, down_bytes=down, price=self._reckoned() if self._price is None else self._price)

    def _reckoned(self) -> float:
        told, made = self._engine.capability, self._delivered - len(self._request.output)
        return (told.price_in * len(self._request.prompt) + told.price_out * made) / 1000

    @property
    def _reached(self) -> Place:
        return self._book.place

    def _ended(self) -> None:
        self._engine.closed()

    # --- chunks ------------------------------------------------------------------------------------------------------

    async def _run(self) -> AsyncGenerator[TokenChunk, None]:
        """Every chunk up to the last; an end without an answer is a chunk too, as the local engine's.

        What ends with a stop token waits for the word whether it was the end: a stop token goes out as the last token.
        """
        held: Fresh | None = None
        try:
            items: AsyncGenerator[Fresh | Final, None] = self._follower.items(lambda: self._book.place, self._take)
            async for item in items:
                if isinstance(item, Final):
                    yield self._last(item, held)
                    return
                fresh = item if held is None else Fresh(held.offset, held.tokens + item.tokens, _both(held, item))
                held = fresh if fresh.tokens[-1] in self._request.sampling.stop_token_ids else None
                if held is None:
                    yield self._chunk(fresh)
        except EdgewiseError as error:
            log.warning("cloud_stream_ended", job=self._key, place=str(self._book.place), code=error.code)
            yield self._failed(error.code, error.message)

    def _again(self) -> JobRequest | None:
        """The job from where the stream is. A text's offsets are those of one job: it stays where it is known."""
        if not isinstance(self._book, TokenBook):
            return None
        request = replace(self._request, output=self._book.begin_again(), deadline_s=self._deadline.left())
        road = self._engine.road
        return generate_job(request, self._engine.capability, road.device, privacy=road.privacy)

    def _take(self, event: Chunk | Final) -> Fresh | Final | None:
        self._told = told_stats(event.facts) or self._told
        self._warnings = told_warnings(event.facts) or self._warnings
        if isinstance(event, Chunk):
            fresh = self._book.take(event)
            return fresh if fresh.tokens else None
        if event.state == "succeeded":
            self._book.check(event)
        self._numeric_class = event.numeric_class or self._numeric_class
        self._price = event.usage.price
        return event

    def _chunk(self, fresh: Fresh) -> TokenChunk:
        self._delivered = fresh.offset + len(fresh.tokens)
        first = self._first is None
        if first:
            self._first = time.monotonic()
        return TokenChunk(
            request_id=self._request.id,
            offset=fresh.offset,
            tokens=fresh.tokens,
            logprobs=fresh.logprobs,
            stats=self._stats() if first else None,
        )

    def _last(self, final: Final, held: Fresh | None) -> TokenChunk:
        if final.state != "succeeded":
            return self._failed(*failure(final))
        chunk = self._chunk(held or Fresh(self._delivered, ()))
        finish: FinishReason = "length" if final.finish == "length" else "stop"
        return replace(chunk, finish=finish, stats=self._stats())

    def _failed(self, code: str, message: str) -> TokenChunk:
        return TokenChunk(
            request_id=self._request.id,
            offset=self._delivered,
            tokens=(),
            finish="cancelled" if code == "cancelled" else "error",
            stats=self._stats(),
            error_code=code,
            error_message=message,
        )

    def _stats(self) -> RequestStats:
        """The cloud's account, or what passed here; with where it ran and what crossed the link."""
        now = time.monotonic()
        first = now if self._first is None else self._first
        stats = self._told or measured_stats(self._request, self._delivered, first - self._started, now - first)
        segment = Segment(
            where=self._engine.road.place,
            offset=len(self._request.output),
            numeric_class=self._numeric_class,
            why=self._engine.why,
        )
        return replace(
            stats,
            completion_tokens=self._delivered,
            segments=(segment,),
            link=self.link,
            warnings=self._warnings,
        )


def _both(first: Fresh, second: Fresh) -> tuple[TokenLogprobs, ...] | None:
    if first.logprobs is None and second.logprobs is None:
        return None
    return (first.logprobs or ()) + (second.logprobs or ())
