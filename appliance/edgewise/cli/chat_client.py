"""A small client of the service's chat API: one question, a stream of text pieces, a closing record."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx

from edgewise.core.addresses import is_loopback
from edgewise.core.errors import EdgewiseError, EngineUnavailable, NotFound

# Generating may pause for long (a queue, an engine restart), while the service sends keep-alive comments every few seconds.
_TIMEOUT = httpx.Timeout(10.0, read=120.0)


class NoService(EngineUnavailable):
    """Nothing answers at the address."""

    code: ClassVar[str] = "service_unreachable"


class ServiceRefusedError(EdgewiseError):
    """The service answered with an error that a retry does not mend."""

    code: ClassVar[str] = "refused"


class AnswerBroken(EngineUnavailable):
    """The stream ended before the answer did."""

    code: ClassVar[str] = "answer_broken"


@dataclass(slots=True)
class Answer:
    """What a stream has brought so far; complete when `finish_reason` is set."""

    text: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    receipt: Mapping[str, Any] | None = None


class ChatClient:
    """Talks to one service.

    Args:
        url: Base URL without path, e.g. http://127.0.0.1:8400.
        key: API key; None sends none.
        trust: PEM file of the service's own certificate, when it is known; its name is then not checked.
        headers: Sent with every request.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        trust: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(
            base_url=self._url,
            headers={**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=_TIMEOUT,
            trust_env=not is_local(self._url),  # a proxy from the environment cannot reach our loopback
            verify=trusting(trust) if trust else True,
        )

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def first_model(self) -> str:
        """Name of the first model that the service lists.

        Raises:
            NoService, ServiceRefusedError: It cannot be asked.
            NotFound: It lists none.
        """
        with self._translated():
            response = self._client.get("/v1/models")
        _check(response)
        models = response.json().get("data") or []
        if not models:
            raise NotFound(f"the service at {self._url} has no model; `edgewise models pull starter` gets one")
        return str(models[0]["id"])

    def get(self, path: str) -> Any:
        """The JSON of a GET. Raises `NoService`, `ServiceRefusedError`, `NotFound` or `EngineUnavailable`."""
        with self._translated():
            response = self._client.get(path)
        _check(response)
        return response.json()

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a POST, with a JSON body or none, which may take as long as it takes. Raises as `get` does."""
        return self.fetch(path, body).json()

    def fetch(self, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The answer to a POST whatever its form, which may take as long as it takes. Raises as `get` does."""
        with self._translated():
            response = self._client.post(path, json=body, timeout=httpx.Timeout(10.0, read=None))
        _check(response)
        return response

    def pieces(self, path: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """The bytes of the answer to a POST as they come. Raises as `get` does, or `AnswerBroken` in the middle."""
        with self._translated(), self._client.stream("POST", path, json=body) as response:
            _check(response)
            yield from response.iter_bytes()

    def send_file(self, path: str, field: str, name: str, content: bytes, fields: Mapping[str, Any]) -> httpx.Response:
        """The answer to a form with a file, which may take as long as it takes. Raises as `get` does."""
        with self._translated():
            response = self._client.post(
                path, data=fields, files={field: (name, content)}, timeout=httpx.Timeout(10.0, read=None, write=60.0)
            )
        _check(response)
        return response

    def delete(self, path: str) -> Any:
        """The JSON of a DELETE. Raises as `get` does."""
        with self._translated():
            response = self._client.delete(path)
        _check(response)
        return response.json()

    def stream(self, messages: Sequence[Mapping[str, Any]], answer: Answer, **options: Any) -> Iterator[str]:
        """Ask, and yield the pieces of the answer's text as they come; `answer` is filled on the way.

        Args:
            messages: The conversation, as the API has it.
            options: Further fields of the request; None is left out.

        Raises:
            NoService, ServiceRefusedError, EngineUnavailable: The question is not answered.
            AnswerBroken: The answer ended in the middle.
        """
        body = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}}
        body.update({name: value for name, value in options.items() if value is not None})
        with self._translated(), self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            _check(response)
            for event in _events(response.iter_lines()):
                piece = _take(event, answer)
                if piece:
                    answer.text += piece
                    yield piece
        if answer.finish_reason is None:
            raise AnswerBroken("the connection ended before the answer did; ask again")

    def _translated(self) -> _Translated:
        return _Translated(self._url)


class _Translated:
    """Turns httpx's errors into ours."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
            raise NoService(
                f"no Edgewise service answers at {self._url} ({error}); start it with `edgewise serve` or "
                "`systemctl start edgewise-device`"
            ) from error
        if isinstance(error, httpx.ReadTimeout):
            raise AnswerBroken("the service has sent nothing for two minutes; see its log") from error
        if isinstance(error, (httpx.HTTPError, httpx.InvalidURL)):
            raise AnswerBroken(f"the connection to {self._url} broke: {error}") from error


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, until its end mark."""
    for line in lines:
        if not line.startswith("data:"):
            continue  # a comment, an event name or the blank line between events
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise error_of(event["error"], 500)
        yield event


def _take(event: Mapping[str, Any], answer: Answer) -> str:
    """Note what an event says in `answer`, and return its piece of text."""
    answer.usage = event.get("usage") or answer.usage
    answer.receipt = event.get("edgewise") or answer.receipt
    choices = event.get("choices") or []
    if not choices:
        return ""
    answer.finish_reason = choices[0].get("finish_reason") or answer.finish_reason
    return str((choices[0].get("delta") or {}).get("content") or "")


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    try:
        detail = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        detail = {"message": f"HTTP {response.status_code}: {response.text[:200]}"}
    raise error_of(detail, response.status_code)


def error_of(detail: Any, status: int) -> EdgewiseError:
    """The service's error object as one of ours."""
    message = str(detail.get("message") or detail) if isinstance(detail, dict) else str(detail)
    if status == 401:
        return ServiceRefusedError(
            f"{message} (give a key with --key or EDGEWISE_API_KEY; `edgewise keys new NAME` makes one)"
        )
    if status == 404:
        return NotFound(message)
    if status in (429, 503):
        return EngineUnavailable(message)
    return ServiceRefusedError(message)


def is_local(url: str) -> bool:
    """Whether a URL names this machine by its loopback address."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or is_loopback(host)


def trusting(cert: Path) -> ssl.SSLContext:
    """Trust exactly this certificate, which is our own service's; it need not name the loopback address."""
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
