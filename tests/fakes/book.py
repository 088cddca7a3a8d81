"""A model engine around a real `RequestBook`: callers, wire and lives without processes or clocks."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgewise.core.errors import EdgewiseError
from edgewise.engine.book import Accept, Action, Deliver, Refuse, RequestBook, Send
from edgewise.engine.messages import Cancel, Submit
from edgewise.engine.request import FinishReason, GenerateRequest, RequestStats, SamplingParams, TokenChunk

CONTEXT = 1000
LIMIT = 3


def token(request: GenerateRequest, position: int) -> int:
    key = f"{request.prompt} {request.sampling.seed} {position}".encode()
    return hashlib.blake2b(key, digest_size=1).digest()[0] % 32


def end(request: GenerateRequest, output: list[int]) -> FinishReason | None:
    if output and output[-1] in request.sampling.stop_token_ids:
        return "stop"
    return "length" if len(output) >= request.sampling.max_tokens else None


def undisturbed(request: GenerateRequest) -> tuple[list[int], FinishReason]:
    output = list(request.output)
    while (finish := end(request, output)) is None:
        output.append(token(request, len(output)))
    return output, finish


def ask(name: str, max_tokens: int = 10, *, deadline_s: float | None = None, **sampling: object) -> GenerateRequest:
    prompt = tuple(name.encode())
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(id=name, prompt=prompt, sampling=params, deadline_s=deadline_s)


@dataclass
class Consumer:
    """What one caller has seen."""

    request: GenerateRequest
    accepted: bool = False
    refusal: EdgewiseError | None = None
    output: list[int] = field(default_factory=list)
    last: TokenChunk | None = None
    left: bool = False

    @property
    def done(self) -> bool:
        return self.left or self.refusal is not None or self.last is not None

    def take(self, chunk: TokenChunk) -> None:
        assert self.accepted
        assert not self.done
        assert chunk.request_id == self.request.id
        assert chunk.offset == len(self.request.output) + len(self.output)
        assert chunk.tokens or chunk.finish
        assert (chunk.stats is not None) == (chunk.finish is not None)
        self.output += chunk.tokens
        if chunk.finish is not None:
            self.last = chunk


class World:
    """A book, a model engine that obeys its protocol, the wire between them, and the consumers."""

    def __init__(self) -> None:
        self.book = RequestBook(strike_limit=LIMIT)
        self.now = 0.0
        self.epoch = 0
        self.engine: dict[str, tuple[GenerateRequest, list[int]]] = {}
        self.wire: deque[TokenChunk | str | tuple[str, EdgewiseError]] = deque()
        self.consumers: dict[str, Consumer] = {}
        self.refuse_next: EdgewiseError | None = None
        self.sent = 0

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(Submit() as message):
                    self.receive(message.request())
                case Send(Cancel(id=key)):
                    self.engine.pop(key, None)
                case Accept(key):
                    assert not self.consumers[key].accepted
                    self.consumers[key].accepted = True
                case Refuse(key, error):
                    assert not self.consumers[key].accepted
                    self.consumers[key].refusal = error
                case Deliver(key, chunk):
                    self.consumers[key].take(chunk)
                case _:
                    raise AssertionError(action)

    def receive(self, request: GenerateRequest) -> None:
        assert self.book.epoch == self.epoch
        assert request.id not in self.engine
        assert end(request, list(request.output)) is None, "nothing is left to generate"
        self.sent += 1
        if self.refuse_next is not None:
            self.wire.append((request.id, self.refuse_next))
            self.refuse_next = None
            return
        self.engine[request.id] = (request, list(request.output))
        self.wire.append(request.id)

    def open(self, request: GenerateRequest) -> str:
        key, actions = self.book.open(request, self.now)
        self.consumers[key] = Consumer(request)
        self.act(actions)
        return key

    def up(self) -> None:
        self.epoch += 1
        self.act(self.book.up(self.epoch, CONTEXT, self.now))

    def step(self, burst: int = 1) -> None:
        for key, (request, output) in list(self.engine.items()):
            offset = len(output)
            while len(output) < offset + burst and end(request, output) is None:
                output.append(token(request, len(output)))
            finish = end(request, output)
            self.wire.append(made(key, offset, output, finish))
            if finish is not None:
                del self.engine[key]

    def deliver(self, count: int = 10**6) -> None:
        for _ in range(min(count, len(self.wire))):
            message = self.wire.popleft()
            if isinstance(message, TokenChunk):
                self.act(self.book.chunks(self.epoch, [message], self.now))
            elif isinstance(message, str):
                self.act(self.book.accepted(self.epoch, message))
            else:
                self.act(self.book.refused(self.epoch, *message, self.now))

    def crash(self, arrived: int = 0) -> None:
        """The engine dies; of what was on the wire, the first messages still arrive."""
        self.deliver(arrived)
        self.wire.clear()
        self.engine.clear()
        self.act(self.book.down(self.now))


def made(key: str, offset: int, output: list[int], finish: FinishReason | None) -> TokenChunk:
    stats = RequestStats(
        prompt_tokens=1,
        cached_tokens=7,
        completion_tokens=len(output),
        queued_s=0.5,
        prefill_s=0.0,
        decode_s=0.0,
        restored_tokens=5,
    )
    return TokenChunk(
        request_id=key,
        offset=offset,
        tokens=tuple(output[offset:]),
        finish=finish,
        stats=None if finish is None else stats,
    )
