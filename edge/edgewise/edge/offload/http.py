"""Jobs over HTTP: a pool of warm connections, streams of server-sent events, and one meaning for every fault of the network.

Whatever breaks on the way (no route, a reset, a certificate, silence) is `LinkLost`; what the cloud refuses is the error that
it names. Proxies of the environment are not used: where texts go is what the configuration says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
from pydantic import ValidationError

from edgewise.core.errors import (
    DigestMismatch,
    EdgewiseError,
    EngineFault,
    InvalidRequest,
    LinkLost,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    QueueFull,
    RangeNotThere,
    error_class,
)
from edgewise.core.tls_time import TimeFloor, client_context
from edgewise.edge.offload.counted import Counted
from edgewise.edge.offload.partial import Partial
from edgewise.edge.offload.transport import NotReached
from edgewise.edge.offload.turns import Turns
from edgewise.edge.placement.protocol import Meter
from edgewise.wire.bounded import PLAIN, plain_pieces, read_bounded
from edgewise.wire.codec import encode_cbor
from edgewise.wire.http import CBOR, CLOUD, JOBS, SILENCE_S, blob_path, job_path
from edgewise.wire.messages import Accepted, Blob, Chunk, CloudInfo, Final, JobControl, JobRequest, Message
from edgewise.wire.stream_log import Place

CONNECT_S = 4.0
_IDLE_S = 25.0  # shorter than the cloud closes idle connections (30 s), so that none breaks under a request
_HEAD_BYTES = 200  # about what request line and headers add
_ASK_BYTES = 64 * 1024
"""Of a blob as large as this it is worth a round trip to learn what the cloud has of it."""
_MAX_LINE = 64 * 1024**2
_MAX_BODY = 64 * 1024**2  # the largest are tokenizers (`faces`)
_BY_STATUS: Mapping[int, type[EdgewiseError]] = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: NotFound,
    429: QueueFull,
    502: LinkLost,
    503: LinkLost,
    504: LinkLost,
}
MessageT = TypeVar("MessageT", bound=Message)


class _Pool:
    """Connections that were made under the same conditions; closed once it is retired and nobody uses it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.users = 0
        self.retired = False

    async def settle(self) -> None:
        if self.retired and self.users == 0:
            await self.client.aclose()


class HttpTransport(Counted):
    """Implements `offload.transport.Transport`.

    Args:
        url: Base address of the cloud engine.
        key: API key; None sends none.
        ca_file: PEM file of the authority that signed its certificate; None trusts those of the system.
        floor: What the dates of its certificate are checked against.
        silence_s: Seconds without a byte after which a connection counts as lost.
        meter: Told of what larger messages take.

    Raises:
        ConfigError: `ca_file` cannot be used.

    Attributes:
        ahead_s: By how many seconds the cloud's clock was ahead at its last answer, to the second; None before one told.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca_file: Path | None = None,
        floor: TimeFloor | None = None,
        silence_s: float = SILENCE_S,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        self._url = url.rstrip("/")
        self._headers = {**PLAIN, **({"authorization": f"Bearer {key}"} if key else {})}
        self._tls = client_context(floor or TimeFloor(), ca_file=ca_file, system=ca_file is None)
        self.ahead_s: float | None = None
        self._meter = meter
        self._timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
        self._pool = _Pool(self._client())
        self._ids: dict[str, str] = {}
        self._partial = Partial()
        self._blobs = Turns()

    def __repr__(self) -> str:
        return f"HttpTransport({self._url})"

    @property
    def name(self) -> Literal["http", "mqtt"]:
        return "http"

    async def info(self) -> CloudInfo:
        return _read(CloudInfo, await self._ask("GET", CLOUD))

    async def fetch(self, path: str) -> bytes:
        """GET another of the cloud's resources; raises as the other methods do."""
        return await self._ask("GET", path)

    async def submit(self, request: JobRequest) -> Accepted:
        body = _body(request)
        accepted = _read(Accepted, await self._ask("POST", JOBS, body))
        self._ids[request.key] = accepted.id
        self._open_account(request.key)
        self._book(request.key, up=len(body) + _HEAD_BYTES)
        return accepted

    async def knows(self, key: str, id: str) -> bool:
        """See `Transport.knows`."""
        try:
            await self._ask("GET", job_path(id))
        except NotFound:
            return False
        self._ids.setdefault(key, id)
        self._open_account(key)
        return True

    async def events(self, key: str, after: Place) -> AsyncGenerator[Chunk | Final, None]:
        """See `Transport.events`."""
        path = f"{job_path(self._id(key), 'stream')}?from={after}"
        async with self._open("GET", path, asking={"accept": "text/event-stream"}) as response:
            async for data in self._data(response):
                self._book(key, down=len(data))
                event = _event(data)
                yield event
                if isinstance(event, Final):
                    return
        raise LinkLost(f"{self._url} ended a stream before its last record.")

    async def control(self, control: JobControl) -> None:
        await self._ask("POST", job_path(self._id(control.key), control.op), _body(control))
        if control.done:
            self._ids.pop(control.key, None)
            self._close_account(control.key)

    async def put_blob(self, content: bytes, media: str) -> Blob:
        """See `Transport.put_blob`: what is large is sent from where an earlier connection left it, if at all."""
        blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), media=media)
        async with self._blobs.of(blob.sha256):
            start = await self._uploaded(blob) if blob.bytes >= _ASK_BYTES else 0
            if start == blob.bytes > 0:
                return blob
            try:
                await self._upload(blob, content, start)
            except RangeNotThere:  # it was dropped meanwhile
                await self._upload(blob, content, 0)
        return blob

    async def get_blob(self, blob: Blob) -> bytes:
        async with self._blobs.of(blob.sha256):
            with self._partial.reading(blob.sha256) as have:
                if len(have) < blob.bytes:
                    await self._fetch(blob, have)
            content = bytes(have)
        if len(content) != blob.bytes or hashlib.sha256(content).hexdigest() != blob.sha256:
            raise DigestMismatch(f"{self._url} sent {len(content)} bytes that are not the blob {blob.sha256[:12]}.")
        return content

    async def close(self) -> None:
        self._partial.close()
        await self._pool.client.aclose()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=8, keepalive_expiry=_IDLE_S)
        return httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            timeout=self._timeout,
            limits=limits,
            verify=self._tls,
            trust_env=False,
        )

    def _id(self, key: str) -> str:
        """What the cloud calls a job."""
        try:
            return self._ids[key]
        except KeyError:
            raise NotFound(f"The job {key!r} was not submitted over this connection: submit it again.") from None

    async def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        started = time.monotonic()
        async with self._open(method, path, content) as response:
            if content is not None and self._meter is not None:
                self._meter.sent(len(content), time.monotonic() - started)
            return await self._whole(response)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        media: str = CBOR,
        asking: Mapping[str, str] | None = None,
        allow: int | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """One exchange; refusals (but one of the status `allow`) and faults of the network leave it as errors of the tree,
        whenever they occur."""
        pool = self._pool
        pool.users += 1
        self._sent += len(content or b"") + len(path) + _HEAD_BYTES
        headers = {**(asking or {}), **({} if content is None else {"content-type": media})}
        try:
            async with pool.client.stream(method, path, content=content, headers=headers) as response:
                self._compare_clocks(response)
                if response.is_error and response.status_code != allow:
                    raise _refusal(response, await self._whole(response))
                yield response
        except (httpx.TransportError, httpx.DecodingError) as error:
            if isinstance(error, httpx.TimeoutException):
                self._renew(pool)
            unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
            raise (NotReached if unsent else LinkLost)(f"{self._url}: {_reason(error)}.") from error
        finally:
            pool.users -= 1
            await pool.settle()

    def _compare_clocks(self, response: httpx.Response) -> None:
        with contextlib.suppress(KeyError, ValueError):  # no date, or one of another form
            self.ahead_s = parsedate_to_datetime(response.headers["date"]).timestamp() - time.time()

    def _renew(self, pool: _Pool) -> None:
        """Where one connection fell silent, the idle ones beside it are as dead: the next request makes a new one."""
        if pool is self._pool:
            pool.retired = True
            self._pool = _Pool(self._client())

    async def _whole(self, response: httpx.Response) -> bytes:
        try:
            return await read_bounded(response, _MAX_BODY)
        finally:  # what is refused has crossed the link too
            self._received += response.num_bytes_downloaded + _HEAD_BYTES

    async def _data(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The data of each event; comments count as signs of life only (WHATWG HTML, section 9.2)."""
        rest = b""
        async for piece in plain_pieces(response):
            self._received += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _MAX_LINE:
                raise LinkLost(f"{self._url} sent a line of more than {_MAX_LINE} bytes.")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:]

    async def _uploaded(self, blob: Blob) -> int:
        """How many bytes of it the cloud has."""
        async with self._open("HEAD", blob_path(blob.sha256), allow=404) as response:
            told = response.headers.get("upload-offset", "")
        if response.is_success:
            return blob.bytes
        begun = int(told) if told.isascii() and told.isdigit() else 0
        return begun if begun < blob.bytes else 0

    async def _upload(self, blob: Blob, content: bytes, start: int) -> None:
        """Send it from `start` on."""
        part = {"content-range": f"bytes {start}-{blob.bytes - 1}/{blob.bytes}"} if start else {}
        started = time.monotonic()
        async with self._open(
            "PUT", blob_path(blob.sha256), content[start:], media=blob.media, asking=part
        ) as response:
            await self._whole(response)
        if self._meter is not None:
            self._meter.sent(blob.bytes - start, time.monotonic() - started)

    async def _fetch(self, blob: Blob, have: bytearray) -> None:
        asked = {"range": f"bytes={len(have)}-"} if have else {}
        started, before = time.monotonic(), len(have)
        async with self._open("GET", blob_path(blob.sha256), asking=asked) as response:
            if have and response.status_code != 206:
                have.clear()
            async for piece in plain_pieces(response):
                self._received += len(piece)
                have += piece
                if len(have) > blob.bytes:
                    raise DigestMismatch(f"{self._url} sent more than the {blob.bytes} bytes of a blob.")
        if self._meter is not None:
            self._meter.received(len(have) - before, time.monotonic() - started)
        if len(have) < blob.bytes:
            raise LinkLost(f"{self._url} ended a blob after {len(have)} of {blob.bytes} bytes.")


def _body(message: Message) -> bytes:
    """CBOR: token ids take half of what they take in JSON."""
    return encode_cbor(message.model_dump(mode="json", exclude_none=True))


def _event(data: bytes) -> Chunk | Final:
    """One event of a stream; a refusal inside it is raised."""
    try:
        raw = json.loads(data)
        if isinstance(raw, dict) and "error" in raw:
            raise _told(raw, 500, None)
        return Final.model_validate(raw) if raw.get("type") == "final" else Chunk.model_validate(raw)
    except (ValueError, AttributeError) as error:
        raise EngineFault(f"The cloud sent an event that is none of version 1: {data[:200]!r}.") from error


def _read(kind: type[MessageT], body: bytes) -> MessageT:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise EngineFault(
            f"What answers at the cloud's address is no cloud engine of version 1: no {kind.__name__} in {body[:100]!r}."
        ) from error


def _refusal(response: httpx.Response, body: bytes) -> EdgewiseError:
    """The error that the cloud names; where something on the way answered for it, the one that the status means."""
    try:
        raw = json.loads(body)
    except ValueError:
        raw = None
    after = response.headers.get("retry-after", "")
    return _told(raw, response.status_code, float(after) if after.isascii() and after.isdigit() else None)


def _told(raw: Any, status: int, retry_after_s: float | None) -> EdgewiseError:
    told = raw.get("error") if isinstance(raw, dict) else None
    told = told if isinstance(told, dict) else {}
    code, message, param = (told.get(name) for name in ("code", "message", "param"))
    kind = error_class(code) if isinstance(code, str) else None
    if kind is None or kind.http_status == 500:
        kind = _BY_STATUS.get(status, EngineFault if status >= 500 else InvalidRequest)
    text = message if isinstance(message, str) else f"The cloud answered with status {status}."
    return kind(text, param=param if isinstance(param, str) else None, retry_after_s=retry_after_s)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return f"no connection within {CONNECT_S:g} s"
    if isinstance(error, httpx.TimeoutException):
        return "silence on the connection"
    return str(error) or type(error).__name__
