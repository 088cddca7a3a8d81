"""One streamed request, with the time of everything that happens to it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

from edgewise.bench.work import Work

Endpoint = Literal["chat", "completions"]
CUT: Final = "cut"
"""`Sample.error` of a stream that stopped before its end."""
PATHS: Final[Mapping[Endpoint, str]] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and what they all carry.

    Attributes:
        base_url: With the version, e.g. "http://127.0.0.1:8400/v1".
        model: Name of the model there.
        endpoint: Which of the two.
        fields: Further fields of every request, e.g. {"temperature": 0}.
        max_field: Name of the field with the longest answer; None takes the endpoint's own in OpenAI's document.
    """

    base_url: str
    model: str
    endpoint: Endpoint = "chat"
    fields: Mapping[str, Any] = field(default_factory=dict)
    max_field: str | None = None

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}{PATHS[self.endpoint]}"

    def body(self, work: Work) -> dict[str, Any]:
        """The request's JSON."""
        chat = self.endpoint == "chat"
        prompt: Any = work.prompt
        if chat and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        return {
            "model": self.model,
            "messages" if chat else "prompt": prompt,
            self.max_field or ("max_completion_tokens" if chat else "max_tokens"): work.answer_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }


@dataclass(slots=True, kw_only=True)
class Sample:
    """What became of one request. Times are seconds of `time.perf_counter`.

    Attributes:
        scheduled: When it was due; its latency counts from here.
        sent: When it was sent: later than scheduled only where this program itself was late.
        arrivals: When each piece of the answer came. A piece is a chunk with text in it: one token with most servers, more
            where a server sends several together.
        ended: When the stream, or the attempt, was over.
        prompt_tokens: As the server's usage says; None where it says nothing.
        answer_tokens: Likewise.
        cached_tokens: Prompt tokens that the server says it had in a cache.
        receipt: The `edgewise` object of one of our services; None from others.
        error: Why it failed: HTTP status and the error's code, or "timeout", "unreachable", "broken", "cut".
    """

    scheduled: float
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    cached_tokens: int = 0
    receipt: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def first_s(self) -> float | None:
        """Seconds from when it was due to the first piece."""
        return self.arrivals[0] - self.scheduled if self.arrivals else None

    @property
    def total_s(self) -> float:
        """Seconds from when it was due to the end."""
        return self.ended - self.scheduled

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]


async def ask(client: httpx.AsyncClient, target: Target, work: Work, sample: Sample) -> None:
    """Sends one request and reads its stream to the end; whatever happens is noted in `sample`, nothing is raised for it.

    Args:
        client: Its timeout and limits hold.
        target: Where to.
        work: What.
        sample: With `scheduled` set.
    """
    sample.sent = time.perf_counter()
    try:
        async with client.stream("POST", target.url, json=target.body(work)) as response:
            if response.status_code != 200:
                await response.aread()
                sample.error = f"{response.status_code}{_code(response)}"
            else:
                sample.error = await _read(response, sample)
    except httpx.TimeoutException:
        sample.error = "timeout"
    except httpx.ConnectError:
        sample.error = "unreachable"
    except httpx.HTTPError:
        sample.error = "broken"
    finally:
        sample.ended = time.perf_counter()


async def _read(response: httpx.Response, sample: Sample) -> str | None:
    async for line in response.aiter_lines():
        ended = note_line(line, time.perf_counter(), sample)
        if ended is not None:
            return ended or None
    return CUT


def note_line(line: str, now: float, sample: Sample) -> str | None:
    """Notes in `sample` what a line of an event stream says that came at `now`.

    Returns:
        None while more may come, "" at the stream's end, else what went wrong.
    """
    if not line.startswith("data:"):
        return None  # comments keep the connection alive, blank lines end an event
    payload = line.removeprefix("data:").strip()
    if payload == "[DONE]":
        return ""
    try:
        event = json.loads(payload)
    except ValueError:
        return "malformed"
    if error := event.get("error"):
        return f"stream {error.get('code') or error.get('type') or 'error'}"
    if any(_has_text(choice) for choice in event.get("choices") or ()):
        sample.arrivals.append(now)
    _note_usage(event.get("usage"), sample)
    sample.receipt = event.get("edgewise") or sample.receipt
    return None


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


def _note_usage(usage: Mapping[str, Any] | None, sample: Sample) -> None:
    if usage:
        sample.prompt_tokens = usage.get("prompt_tokens")
        sample.answer_tokens = usage.get("completion_tokens")
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _code(response: httpx.Response) -> str:
    try:
        code = response.json()["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f" {code}" if isinstance(code, str) else ""
