"""How answers are written: one writer for each API's form, fed with the pieces of one run, for streams and whole bodies alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from edgewise.api.errors import error_body
from edgewise.api.parse import AnswerForm
from edgewise.api.responses import dumps
from edgewise.api.shapes import Gathered, Shape, usage_object
from edgewise.api.sse import DONE, KEEP_ALIVE, sse
from edgewise.core.errors import EdgewiseError
from edgewise.pipeline.run import Run
from edgewise.pipeline.text import TextChunk

_NO_CHOICES = b'"choices":[]'  # in JSON this cannot be part of a text, where quotes are escaped


class Writer(Protocol):
    """Fed by `piece` for a stream or by `gather` for a whole body, never by both.

    Attributes:
        keep_alive: What a silent stream sends.
    """

    keep_alive: bytes

    def opening(self) -> Iterable[bytes]:
        """Events before the first piece."""

    def piece(self, chunk: TextChunk) -> Iterable[bytes]:
        """Events for a piece of any answer."""

    def gather(self, chunk: TextChunk) -> None:
        """Keep a piece for the whole body."""

    async def settle(self) -> None:
        """All answers have ended: do what must be done before the caller hears of the end. May raise an `EdgewiseError`."""

    def closing(self) -> Iterable[bytes]:
        """Events after the last piece."""

    def failure(self, error: EdgewiseError) -> Iterable[bytes]:
        """Events for a fault inside the stream; nothing comes after them."""

    def body(self) -> dict[str, Any]:
        """The whole answer."""


class ChoicesWriter:
    """Chat and text completions: choices in envelopes, `[DONE]` at the end."""

    keep_alive = KEEP_ALIVE

    def __init__(self, run: Run, shape: Shape, form: AnswerForm) -> None:
        self._run = run
        self._shape = shape
        self._form = form
        self._answers = [Gathered() for _ in range(len(run.prompts) * run.task.n)]
        self._usage: dict[str, Any] = {"usage": None} if form.include_usage else {}
        before, empty, after = dumps(shape.envelope([], chunk=True) | self._usage).partition(_NO_CHOICES)
        # What an event has before and after its one choice: all else in it is the same in every event.
        self._before, self._after = b"data: " + before + empty[:-1], empty[-1:] + after + b"\n\n"

    def opening(self) -> Iterable[bytes]:
        for choice in self._shape.opening():
            yield self._event(choice)

    def piece(self, chunk: TextChunk) -> Iterable[bytes]:
        for choice in self._shape.deltas(chunk):
            if self._run.done and choice["finish_reason"] is not None and not self._form.include_usage:
                yield sse(self._shape.envelope([choice], chunk=True) | {"edgewise": self._run.receipt().to_dict()})
            else:
                yield self._event(choice)

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._before + dumps(choice) + self._after

    def gather(self, chunk: TextChunk) -> None:
        self._answers[chunk.sequence].add(chunk)

    async def settle(self) -> None:
        """Nothing is kept of these answers."""

    def closing(self) -> Iterable[bytes]:
        if self._form.include_usage:
            yield sse(self._shape.envelope([], chunk=True) | self._told())
        yield DONE

    def failure(self, error: EdgewiseError) -> Iterable[bytes]:
        yield sse(error_body(error))

    def body(self) -> dict[str, Any]:
        choices = [self._shape.choice(index, answer) for index, answer in enumerate(self._answers)]
        return self._shape.envelope(choices, chunk=False) | self._told()

    def _told(self) -> dict[str, Any]:
        return {"usage": usage_object(self._run), "edgewise": self._run.receipt().to_dict()}
