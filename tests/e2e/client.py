"""A small REST client for drills: completions, streamed or not, and the service's own routes."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from scripts.sse import Answer, events, read_answer

TIMEOUT_S = 300.0


class Client:
    """One connection pool to one service; a context manager."""

    def __init__(
        self, url: str, *, key: str | None = None, model: str = "starter", verify: bool | ssl.SSLContext = True
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.model = model
        self.http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=verify)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.http.close()

    def body(self, prompt: str, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": "user", "content": prompt}], **fields}

    def chat(self, prompt: str, **fields: Any) -> Mapping[str, Any]:
        """The whole answer as the API's JSON; raises `httpx.HTTPStatusError` unless 200."""
        response = self.http.post("/v1/chat/completions", json=self.body(prompt, **fields))
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    @contextmanager
    def stream_lines(self, prompt: str, **fields: Any) -> Iterator[Iterator[str]]:
        """The raw lines of a streamed answer."""
        body = self.body(prompt, stream=True, **fields)
        with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
            response.raise_for_status()
            yield response.iter_lines()

    @contextmanager
    def stream_events(self, prompt: str, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed answer; leaving the block early drops the connection."""
        with self.stream_lines(prompt, **fields) as lines:
            yield events(lines)

    def stream(self, prompt: str, **fields: Any) -> Answer:
        """A streamed answer, read to its end."""
        with self.stream_lines(prompt, **fields) as lines:
            return read_answer(lines)

    def get(self, path: str) -> Any:
        """JSON of a route; raises `httpx.HTTPStatusError` unless 200."""
        response = self.http.get(path)
        response.raise_for_status()
        return response.json()

    def engine_gauges(self) -> dict[str, float]:
        """The engine's gauges on /metrics by their short name, e.g. "pages_free"; the service serves one model."""
        response = self.http.get("/metrics")
        response.raise_for_status()
        found = re.findall(r"^edgewise_engine_([a-z_]+)\{[^}]*\} (\S+)$", response.text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def wait_idle(self, limit_s: float = 30.0) -> dict[str, float]:
        """The engine's gauges once no request runs or waits; raises TimeoutError if that does not come about."""
        limit = time.monotonic() + limit_s
        while time.monotonic() < limit:
            gauges = self.engine_gauges()
            if gauges["up"] == 1 and gauges["running"] == 0 and gauges["waiting"] == 0:
                return gauges
            time.sleep(0.05)
        raise TimeoutError(f"the engine is not idle after {limit_s:g} s: {gauges}")


def text_of(answer: Mapping[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def tokens_of(answer: Mapping[str, Any]) -> list[int]:
    """Token ids of choice 0; the request must have asked for them with `return_token_ids`."""
    return [int(token) for token in answer["choices"][0]["token_ids"]]
