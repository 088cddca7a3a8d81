"""HTTP to a server with OpenAI's API: every wait and every size is bounded, every fault becomes an error of ours."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx

from edgewise.cloud.executors.completions import UpstreamModel, Usage, told_error
from edgewise.core.addresses import is_loopback
from edgewise.core.errors import DeadlineExceeded, EdgewiseError, EngineUnavailable, LinkLost
from edgewise.core.patience import within
from edgewise.wire.bounded import PLAIN, plain_pieces, read_bounded

Result = TypeVar("Result")

_LONGEST_LINE: Final = 4 * 1024**2
_LONGEST_BODY: Final = 16 * 1024**2
_END: Final = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTimings:
    """Limits and pauses in seconds, and how often is tried.

    Attributes:
        connect_s: Until a connection stands.
        first_s: Until the first piece of an answer: the server's queue and a long prompt.
        silence_s: Between pieces, comments not counted: a server that only keeps the connection alive is not answering.
        list_s: How often models are listed; `list_again_s` after a failure.
        tries: Requests for one attempt at a job, as long as nothing has come.
        pause_s, longest_pause_s: The pause between them doubles from the one to the other, each times a random number from 1/2
            to 1. Where the server names a longer pause than the longest, the attempt ends with it instead.
    """

    connect_s: float = 5.0
    first_s: float = 300.0
    silence_s: float = 60.0
    list_s: float = 30.0
    list_again_s: float = 1.0
    tries: int = 4
    pause_s: float = 0.25
    longest_pause_s: float = 8.0


class Upstream:
    """The server: what can be asked of it.

    Args:
        url: Base address with its version, e.g. "http://127.0.0.1:8000/v1".
        key: Sent as a bearer token.
        timings: Limits.

    Every method raises `LinkLost` where the network breaks or falls silent, `EngineUnavailable` where what comes is no answer of
    such a server, and what the server's own error means (`completions.told_error`).
    """

    _client: httpx.AsyncClient

    def __init__(self, url: str, key: str | None, timings: HttpTimings) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._timings = timings

    def __repr__(self) -> str:
        return f"Upstream({self._url})"

    def open(self) -> None:
        """Begin; in the event loop."""
        host = urlsplit(self._url).hostname or ""
        self._client = httpx.AsyncClient(
            headers={**PLAIN, **({"Authorization": f"Bearer {self._key}"} if self._key else {})},
            timeout=httpx.Timeout(
                None, connect=self._timings.connect_s, write=30.0
            ),  # answers have limits of their own
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            trust_env=host != "localhost" and not is_loopback(host),  # a proxy cannot reach our loopback
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def models(self) -> list[UpstreamModel]:
        """What it lists."""
        told = await self._exchange("GET", "/models", None, self._timings.silence_s)
        listed = told.get("data")
        if not isinstance(listed, list):
            raise EngineUnavailable(f"{self._url}/models is no list of models: is it an OpenAI-compatible server?")
        return [model for one in listed if (model := UpstreamModel.read(one)) is not None]

    async def one_token(self, model: str, prompt: str) -> Usage:
        """Compute one token after a prompt; what the server counted."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1}
        told = await self._exchange("POST", "/completions", body, self._timings.first_s)
        usage = Usage()
        usage.note(told.get("usage"))
        return usage

    async def stream(self, body: Mapping[str, Any], until: float) -> AsyncGenerator[Any, None]:
        """The events of a completion up to the end of its stream, wherever that is.

        Args:
            body: The request.
            until: Moment of the monotonic clock after which nobody wants the answer.

        Raises:
            DeadlineExceeded: It is `until`.
        """
        limit = self._timings.first_s
        async with aclosing(self._lines(body)) as lines:
            while (line := await _in_time(anext(lines, _END), limit, until)) != _END:
                limit = self._timings.silence_s
                try:
                    event = json.loads(line)
                except ValueError as error:
                    raise EngineUnavailable("The upstream server sent an event that is no JSON.") from error
                yield event

    async def _lines(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The data lines of the stream."""
        with self._translated():
            async with self._client.stream("POST", f"{self._url}/completions", json=body) as response:
                if response.status_code != 200:
                    raise _refusal(response, await read_bounded(response, _LONGEST_BODY, fault=EngineUnavailable))
                rest = b""
                async for piece in plain_pieces(response, fault=EngineUnavailable):
                    *lines, rest = (rest + piece).split(b"\n")
                    if len(rest) > _LONGEST_LINE:
                        raise EngineUnavailable(f"The upstream server sent a line of more than {_LONGEST_LINE} bytes.")
                    for line in lines:
                        if line.startswith(b"data:"):
                            yield line[5:].strip()

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, limit: float) -> dict[str, Any]:
        """A request without a stream; the JSON object that came."""

        async def exchange() -> bytes:
            with self._translated():
                async with self._client.stream(method, f"{self._url}{path}", json=body) as response:
                    content = await read_bounded(response, _LONGEST_BODY, fault=EngineUnavailable)
                    if response.status_code != 200:
                        raise _refusal(response, content)
            return content

        content = await _in_time(exchange(), limit, float("inf"))
        told = _json(content)
        if not isinstance(told, dict):
            raise EngineUnavailable(
                f"{self._url}{path} answers with no JSON object: is it an OpenAI-compatible server?"
            )
        return told

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Faults of the network as errors of ours."""
        try:
            yield
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise LinkLost(f"The upstream server at {self._url} cannot be reached or broke off ({reason}).") from error


async def _in_time(work: Awaitable[Result], limit: float, until: float) -> Result:
    left = until - time.monotonic()
    if left <= limit:
        return await within(work, max(0.0, left), lambda: DeadlineExceeded("The job's deadline has passed."))
    return await within(work, limit, lambda: LinkLost(f"The upstream server sent nothing for {limit:g} s."))


def _json(content: bytes) -> Any:
    """What it says; None if it is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def _refusal(response: httpx.Response, content: bytes) -> EdgewiseError:
    after = response.headers.get("retry-after", "")
    seconds = float(after) if after.isascii() and after.isdecimal() else None
    return told_error(_json(content), response.status_code, seconds)
