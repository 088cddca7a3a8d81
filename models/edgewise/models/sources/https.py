"""`https:` sources: one file behind a URL, resumed after every interruption (RFC 9110: Range, If-Range, Content-Range)."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edgewise.core.errors import SourceUnavailable
from edgewise.models.blobs import PartialFile
from edgewise.models.progress import Progress, ProgressSink
from edgewise.security.fetch import FetchPolicy, Response, check_url, open_url

PIECE: Final = 1 << 18
MAX_ATTEMPTS: Final = 6
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class _TryAgain(Exception):
    """The attempt ended early in a way that the next one may mend."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsSource:
    """A file behind a URL.

    Attributes:
        url: https, or http where allowed.
        allow_http: Whether http is.
        allow_private: Whether the URL's own host may lie at a private address; hosts that it redirects to may not.
        timeout_s: Longest silence, seconds.
        sleep: Waits between attempts (tests give their own).
    """

    url: str
    allow_http: bool = False
    allow_private: bool = False
    timeout_s: float = 30.0
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.url

    @property
    def policy(self) -> FetchPolicy:
        """What this source may open.

        Raises:
            UrlRefused: The URL itself is malformed or of the wrong scheme.
        """
        policy = FetchPolicy(allow_http=self.allow_http, timeout_s=self.timeout_s)
        if not self.allow_private:
            return policy
        host = str(check_url(self.url, policy).hostname)
        return FetchPolicy(allow_http=self.allow_http, timeout_s=self.timeout_s, private_hosts=frozenset({host}))

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        self._download(sink, progress)
        sink.finish()

    def _download(self, sink: PartialFile, progress: ProgressSink) -> None:
        failures = 0
        while sink.offset < sink.file.size:
            before = sink.offset
            try:
                self._attempt(sink, progress)
            except _TryAgain as again:
                worth = min(1 << 20, max(1, sink.file.size // 100))
                failures = 1 if sink.offset - before >= worth else failures + 1
                if failures >= MAX_ATTEMPTS:
                    raise SourceUnavailable(
                        f"{again} {failures} attempts in a row failed; pull again to resume."
                    ) from again
                self.sleep(_pause(failures, again.pause_s))

    def _attempt(self, sink: PartialFile, progress: ProgressSink) -> None:
        try:
            with open_url(self.url, self.policy, _range_headers(sink, self.url)) as response:
                _check_answer(response, sink, self.url)
                _note_origin(response, sink, self.url)
                _receive(response, sink, progress)
        except SourceUnavailable as error:
            if isinstance(error, _Final):
                raise
            raise _TryAgain(error.message) from error
        if sink.offset < sink.file.size:
            raise _TryAgain(f"{self.url} broke off at byte {sink.offset} of {sink.file.size}.")


class _Final(SourceUnavailable):
    """Trying again would get the same answer."""


def _range_headers(sink: PartialFile, url: str) -> dict[str, str]:
    if not sink.offset:
        return {}
    headers = {"Range": f"bytes={sink.offset}-"}
    origin = sink.origin
    if origin is not None and origin[0] == url and origin[1]:
        headers["If-Range"] = origin[1]
    return headers


def _check_answer(response: Response, sink: PartialFile, url: str) -> None:
    if response.status in _PASSING:
        raise _TryAgain(f"{response.url} answers {response.status}.", _retry_after(response))
    if response.status == 416:  # the server's file is shorter than what we hold: it is not the same file
        sink.reset()
        raise _TryAgain(f"{response.url} refuses to resume.")
    if response.status not in {200, 206}:
        raise _Final(f"{response.url} answers {response.status}: the file is not there, or not for you.")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _Final(
            f"{response.url} sends {response.headers['content-encoding']}-encoded data, which was not asked for."
        )
    total = _begin_full(response, sink) if response.status == 200 else _begin_part(response, sink, url)
    if total is not None and total != sink.file.size:
        sink.reset()
        raise _Final(f"{response.url} has {total} bytes, the entry states {sink.file.size}: it is another file.")


def _begin_full(response: Response, sink: PartialFile) -> int | None:
    if sink.offset:
        sink.reset()  # If-Range failed or the server knows no ranges: the body begins at byte 0
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None


def _begin_part(response: Response, sink: PartialFile, url: str) -> int:
    span = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    origin = sink.origin
    changed = origin is not None and origin[0] == url and origin[1] not in {"", _validator(response)}
    if span is None or int(span[1]) != sink.offset or changed:
        sink.reset()
        raise _TryAgain(f"{response.url} sends another part than the one asked for.")
    sink.resumed = sink.offset > 0
    return int(span[3])


def _receive(response: Response, sink: PartialFile, progress: ProgressSink) -> None:
    while data := response.read(PIECE):
        sink.write(data)
        progress(Progress("download", sink.file.name, sink.offset, sink.file.size))


def _note_origin(response: Response, sink: PartialFile, url: str) -> None:
    current = (url, _validator(response))
    if sink.origin != current:
        sink.origin = current


def _validator(response: Response) -> str:
    """A strong validator fit for If-Range (RFC 9110, 13.1.5), or "" if the server gives none."""
    etag = response.headers.get("etag", "")
    return etag if etag.startswith('"') else ""


def _retry_after(response: Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0.0


def _pause(failures: int, asked_s: float) -> float:
    grown = FIRST_PAUSE_S * 2 ** (failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
    return min(LONGEST_PAUSE_S, max(float(grown), asked_s))
