"""A test double of `offload.transport.Transport`: a cloud in process that makes the stream of a pure function, over a link that
breaks where a test says so. Its faults are those of links: a loss before or after a message arrived, chunks that come twice, out
of step, or torn at other places than before."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgewise.core.errors import EdgewiseError, LinkLost, NotFound, QueueFull
from edgewise.edge.offload.follow import Patience, Road
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.remote import RemoteEngine
from edgewise.edge.offload.transport import NotReached, Traffic
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, SamplingParams, TokenChunk
from edgewise.wire.messages import (
    Accepted,
    Blob,
    Capability,
    Chunk,
    CloudInfo,
    DiffuseWork,
    Final,
    Finish,
    GenerateWork,
    JobControl,
    JobRequest,
    Usage,
)
from edgewise.wire.stream_log import Place, StreamHash
from tests.fakes.engine import FakeEngine

DIGEST = "sha256:" + "a" * 64
CLASS = "fake/float32/int8/none/cpu"
Answer = Callable[[GenerateWork], Sequence[int]]


def token_at(prompt: Sequence[int], seed: int, position: int) -> int:
    """What every engine of the tests draws at a position."""
    return hashlib.sha256(f"{tuple(prompt)}/{seed}/{position}".encode()).digest()[0] % 200


def plain(work: GenerateWork) -> list[int]:
    return [token_at(work.prompt, work.sampling.get("seed", 0), at) for at in range(work.sampling["max_tokens"])]


def ask(name: str = "r", *, max_tokens: int = 12, output: tuple[int, ...] = (), **fields: object) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=7, stop_token_ids=(250,))
    return GenerateRequest(id=name, prompt=(1, 2, 3), sampling=sampling, output=output, **fields)  # type: ignore[arg-type]


def expected(request: GenerateRequest) -> list[int]:
    """The whole answer, whoever makes it."""
    count = request.sampling.max_tokens
    return [token_at(request.prompt, request.sampling.seed, at) for at in range(count)]


@dataclass
class FakeTransport:
    """Attributes:
    answer: Tokens of a job, those delivered before among them.
    finish: How it ends.
    cuts: Connections, in order: after how many chunks each breaks; when used up, they hold.
    back: Items by which a stream begins before the place it was asked for.
    width: Items per chunk on each connection, in turn.
    refuse: Raised by `submit`, once each.
    losses: How many further calls find no link.
    full: How many further streams find all places taken.
    lost_answers: How many further jobs are taken without that the device hears of it.
    """

    answer: Answer = plain
    finish: Finish = "length"
    cuts: list[int] = field(default_factory=list)
    back: int = 0
    width: Sequence[int] = (1,)
    refuse: list[EdgewiseError] = field(default_factory=list)
    losses: int = 0
    full: int = 0
    lost_answers: int = 0
    hang: bool = False
    as_text: Callable[[Sequence[int]], str] | None = None
    spoil: Callable[[Chunk | Final], Chunk | Final] = lambda event: event
    jobs: dict[str, JobRequest] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    draw: Callable[[DiffuseWork], bytes] = lambda work: b"picture"
    submits: int = 0
    connections: int = 0
    said: list[JobControl] = field(default_factory=list)
    name: Literal["http", "mqtt"] = "http"

    def traffic(self, key: str) -> Traffic:
        return Traffic(100, 10 * self.connections) if key in self.jobs else Traffic()

    async def info(self) -> CloudInfo:
        self._link()
        return CloudInfo(name="fake", tenant="test", models=(CAPABILITY,))

    async def submit(self, request: JobRequest) -> Accepted:
        self.submits += 1
        self._link()
        if self.refuse:
            raise self.refuse.pop(0)
        self.jobs[request.key] = request
        if self.lost_answers:
            self.lost_answers -= 1
            raise LinkLost("The answer was lost, as ordered.")
        return Accepted(id=self._id(request.key))

    def _id(self, key: str) -> str:
        """One for each key in each table."""
        return f"job-{key}-{id(self.jobs)}"

    async def knows(self, key: str, id: str) -> bool:
        self._link()
        return key in self.jobs and id == self._id(key)

    async def events(self, key: str, after: Place) -> AsyncGenerator[Chunk | Final, None]:
        self._link()
        if key not in self.jobs:
            raise NotFound("There is no such job.")
        if self.full:
            self.full -= 1
            raise QueueFull("All places are taken.", retry_after_s=1.0)
        work = self.jobs[key].work
        self.connections += 1
        attempt = self.connections
        if isinstance(work, DiffuseWork):
            async for event in self._drawing(work, attempt):
                yield event
            return
        width = self.width[attempt % len(self.width)]
        left = self.cuts.pop(0) if self.cuts else None
        items: Sequence[int] | str = self.answer(work)
        if self.as_text is not None:
            items = self.as_text(items)  # type: ignore[arg-type]
        at = max(0 if self.as_text else len(work.output), after.offset - self.back)
        while at < len(items):
            if left == 0:
                raise LinkLost("The link broke as ordered.")
            left = None if left is None else left - 1
            await asyncio.sleep(3600 if self.hang else 0)
            part = items[at : at + width]
            yield self.spoil(_chunk(attempt, at, part))
            at += len(part)
        if left == 0:
            raise LinkLost("The link broke before the last record.")
        yield self.spoil(self._final(work, attempt, items))

    async def control(self, control: JobControl) -> None:
        self._link()
        self.said.append(control)

    async def put_blob(self, content: bytes, media: str) -> Blob:
        self._link()
        blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), media=media)
        self.blobs[blob.sha256] = content
        return blob

    async def get_blob(self, blob: Blob) -> bytes:
        self._link()
        return self.blobs[blob.sha256]

    async def close(self) -> None: ...

    async def _drawing(self, work: DiffuseWork, attempt: int) -> AsyncGenerator[Chunk | Final, None]:
        """Four steps, from the first on in every attempt; a preview after the second."""
        await asyncio.sleep(3600 if self.hang else 0)
        left = self.cuts.pop(0) if self.cuts else None
        for step in range(4):
            if left == 0:
                raise LinkLost("The link broke as ordered.")
            left = None if left is None else left - 1
            await asyncio.sleep(0)
            preview = await self.put_blob(b"preview", "image/png") if step == 1 else None
            yield Chunk(attempt=attempt, offset=step, count=1, preview=preview, facts={"total": 4})
        picture = await self.put_blob(self.draw(work), "image/png")
        facts = {"queued_s": 0, "denoise_s": 1, "decode_s": 0, "steps": 4, "computed_steps": 4, "guidance": 1}
        yield Final(
            state="succeeded",
            attempt=attempt,
            count=4,
            unit="steps",
            finish="done",
            blobs=(picture,),
            facts={**facts, "width": 8, "height": 8, "total": 4},
            numeric_class=CLASS,
        )

    def _link(self) -> None:
        if self.losses:
            self.losses -= 1
            raise NotReached("There is no link, as ordered.")

    def _final(self, work: GenerateWork, attempt: int, items: Sequence[int] | str) -> Final:
        made = StreamHash()
        if isinstance(items, str):
            made.text(items)
        else:
            made.tokens(items)
        return Final(
            state="succeeded",
            attempt=attempt,
            count=len(items),
            unit="characters" if isinstance(items, str) else "tokens",
            sha256=made.hexdigest(),
            finish=self.finish,
            usage=Usage(prompt_tokens=len(work.prompt), completion_tokens=len(items), price=0.5),
            numeric_class=CLASS,
        )


CAPABILITY = Capability(model="tiny", digest=DIGEST, context=4096, numeric_class=CLASS)


def _chunk(attempt: int, at: int, part: Sequence[int] | str) -> Chunk:
    if isinstance(part, str):
        return Chunk(attempt=attempt, offset=at, count=len(part), text=part)
    return Chunk(attempt=attempt, offset=at, count=len(part), tokens=tuple(part))


def remote(transport: FakeTransport, *, patience_s: float = 5.0, **fields: object) -> RemoteEngine:
    """The engine over a double; its last words are said by `engine.road.parting`."""
    road = Road(lambda: transport, Parting(), "test")
    patience = Patience(submit_s=patience_s, stream_s=patience_s)
    return RemoteEngine(road, CAPABILITY, vocab_size=256, patience=patience, **fields)  # type: ignore[arg-type]


@dataclass
class LocalEngine(FakeEngine):
    """The engine of this device: draws the same tokens as the cloud, from wherever it begins.

    Attributes:
        breaks_at: Offset at which it ends with `code`; None never.
        pause_s: Before its first token.
    """

    breaks_at: int | None = None
    code: str = "engine_error"
    pause_s: float = 0.0
    ended: int = 0

    async def submit(self, request: GenerateRequest) -> LocalStream:  # type: ignore[override]
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        return LocalStream(self, request)


class LocalStream:
    """Its answer to one request."""

    def __init__(self, engine: LocalEngine, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._at = len(request.output)
        self._done = False

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        if self._done:
            raise StopAsyncIteration
        await asyncio.sleep(self._engine.pause_s if self._at == len(self._request.output) else 0)
        at, count = self._at, self._request.sampling.max_tokens
        self._at += 1
        if at == self._engine.breaks_at:
            return self._last(at, (), "error")
        token = token_at(self._request.prompt, self._request.sampling.seed, at)
        if at + 1 >= count:
            return self._last(at, (token,), "length")
        return TokenChunk(request_id=self._request.id, offset=at, tokens=(token,))

    async def aclose(self) -> None:
        if not self._done:
            self._done = True
            self._engine.aborted += 1

    def _last(self, at: int, tokens: tuple[int, ...], finish: FinishReason) -> TokenChunk:
        self._done = True
        stats = RequestStats(
            prompt_tokens=len(self._request.prompt),
            cached_tokens=0,
            completion_tokens=at + len(tokens),
            queued_s=0.0,
            prefill_s=0.0,
            decode_s=0.0,
        )
        broke = finish == "error"
        return TokenChunk(
            request_id=self._request.id,
            offset=at,
            tokens=tokens,
            finish=finish,
            stats=stats,
            error_code=self._engine.code if broke else None,
            error_message="It broke as ordered." if broke else None,
        )
