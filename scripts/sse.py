"""Read a streamed chat or text completion: server-sent events to chunks, chunks to an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class StreamError(Exception):
    """The stream carried an error event, or ended without its final `[DONE]`."""


@dataclass(kw_only=True)
class Answer:
    """What a stream said, put together.

    Attributes:
        text: Joined text of choice 0.
        token_ids: Its token ids, if they were asked for.
        finish_reason: Why choice 0 ended.
        usage: Of the usage event, if it was asked for.
        receipt: The `edgewise` object of the last event that had one.
        chunks: Number of events.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    receipt: Mapping[str, Any] | None = None
    chunks: int = 0

    def add(self, event: Mapping[str, Any]) -> str:
        """Take in one event; returns the text it brought."""
        self.chunks += 1
        self.usage = event.get("usage") or self.usage
        self.receipt = event.get("edgewise") or self.receipt
        brought = ""
        for choice in event.get("choices", ()):
            if choice.get("index", 0) != 0:
                continue
            brought += choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.token_ids += choice.get("token_ids") or ()
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.text += brought
        return brought


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON payloads of a server-sent event stream, up to `[DONE]`.

    Raises:
        StreamError: An error event came, or the stream ended early.
    """
    for line in lines:
        if not line.startswith("data:"):
            continue  # comments keep the connection alive, blank lines end an event
        payload = line.removeprefix("data:").strip()
        if payload == "[DONE]":
            return
        event = json.loads(payload)
        if "error" in event:
            raise StreamError(json.dumps(event["error"]))
        yield event
    raise StreamError("the stream ended without [DONE]")


def read_answer(lines: Iterable[str], on_text: Callable[[str], None] | None = None) -> Answer:
    """Read a stream to its end; `on_text` is called with each piece of text."""
    answer = Answer()
    for event in events(lines):
        brought = answer.add(event)
        if brought and on_text is not None:
            on_text(brought)
    return answer
