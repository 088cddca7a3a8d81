"""Answers in the form of Anthropic's Messages API: content blocks, and named events for each step of their making."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from edgewise.api.messages_api.errors import messages_error
from edgewise.api.sse import sse
from edgewise.core.errors import EdgewiseError
from edgewise.pipeline.run import Run
from edgewise.pipeline.text import TextChunk, ToolCallDelta

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
PING = sse({"type": "ping"}, event="ping")


class MessagesWriter:
    keep_alive = PING

    def __init__(self, run: Run) -> None:
        self._run = run
        self._id = f"msg_{run.task.id.removeprefix('req_')}"
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""
        self._open = False
        self._finish: str | None = None
        self._warnings: list[str] = []
        self._stop: str | None = None

    def opening(self) -> Iterable[bytes]:
        start = self._message() | {"content": []}
        yield _event("message_start", message=start)
        yield PING

    def piece(self, chunk: TextChunk) -> Iterator[bytes]:
        for part in chunk.ordered:
            yield from self._text(part) if isinstance(part, str) else self._call(part)
        if chunk.finish is not None:
            self._finish, self._stop = chunk.finish, chunk.stop
            yield from self._close()

    def gather(self, chunk: TextChunk) -> None:
        for _ in self.piece(chunk):
            pass

    async def settle(self) -> None:
        """Nothing is kept of these answers."""

    def closing(self) -> Iterable[bytes]:
        delta = {"stop_reason": self._reason(), "stop_sequence": self._stop}
        yield _event("message_delta", delta=delta, usage=self._usage())
        yield _event("message_stop", edgewise=self._receipt())

    def failure(self, error: EdgewiseError) -> Iterable[bytes]:
        yield sse(messages_error(error, self._run.task.id), event="error")

    def body(self) -> dict[str, Any]:
        ended = {"stop_reason": self._reason(), "stop_sequence": self._stop}
        return self._message() | ended | {"edgewise": self._receipt()}

    def _receipt(self) -> dict[str, Any]:
        receipt = self._run.receipt().to_dict()
        return receipt | {"warnings": [*receipt["warnings"], *self._warnings]}

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._run.task.model.name,
            "content": self._blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        """Anthropic's sum: the prompt is what was computed plus what was read from the cache."""
        usage = self._run.usage()
        cached = usage.cached_tokens or 0
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
        }

    def _reason(self) -> str:
        if self._stop is not None:
            return "stop_sequence"
        if self._finish == "length" and self._run.usage().completion_tokens < (self._run.task.sampling.max_tokens or 0):
            return "model_context_window_exceeded"
        if self._finish == "tool_calls" and not any(block["type"] == "tool_use" for block in self._blocks):
            return "end_turn"  # no whole call is left
        return _REASONS.get(self._finish or "", "end_turn")

    def _text(self, text: str) -> Iterator[bytes]:
        if not self._open or self._blocks[-1]["type"] != "text":
            yield from self._close()
            yield from self._start({"type": "text", "text": ""})
        self._blocks[-1]["text"] += text
        yield self._delta({"type": "text_delta", "text": text})

    def _call(self, delta: ToolCallDelta) -> Iterator[bytes]:
        if delta.name is not None:
            yield from self._close()
            self._arguments = ""
            yield from self._start({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        if delta.arguments:
            self._arguments += delta.arguments
            yield self._delta({"type": "input_json_delta", "partial_json": delta.arguments})

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        self._blocks.append(block)
        self._open = True
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if not self._open:
            return
        self._open = False
        index = len(self._blocks) - 1
        if self._blocks[-1]["type"] == "tool_use":
            self._read_arguments()
        yield _event("content_block_stop", index=index)

    def _read_arguments(self) -> None:
        """A call whose arguments are no JSON (cut off, as a rule) has no `input`: the body leaves it out, the receipt says so."""
        try:
            self._blocks[-1]["input"] = json.loads(self._arguments)
        except json.JSONDecodeError:
            name = self._blocks.pop()["name"]
            self._warnings.append(f"A call of '{name}' is left out of the body: its arguments are no whole JSON.")


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, event=kind)
