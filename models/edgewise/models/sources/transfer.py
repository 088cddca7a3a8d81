"""Brings one file over HTTP, resumed after every interruption (RFC 9110: Range, If-Range, Content-Range).

Every source that speaks HTTP is this with its own headers and its own reading of the answer's status.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from edgewise.core.errors import DigestMismatch, SourceUnavailable
from edgewise.models.blobs import PartialFile
from edgewise.models.progress import Progress, ProgressSink
from edgewise.models.sources.attempts import Attempts, Refused, TryAgain, check_passing
from edgewise.security.fetch import FetchPolicy, Response, open_url

PIECE: Final = 1 << 18

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


def no_headers() -> Mapping[str, str]:
    return {}


def accept_any(response: Response) -> None:
    """Leaves every answer to the rules that all transfers have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One file behind a URL.

    Attributes:
        url: Where it lies; also the name under which a beginning of it is remembered.
        policy: What may be opened.
        headers: Asked before each attempt, since a token may have run out in between.
        accept: Sees each answer first and raises what its status means to this kind of server: Refused, TryAgain, or an
            error of its own.
        sleep: Waits between attempts.
    """

    url: str
    policy: FetchPolicy
    headers: Callable[[], Mapping[str, str]] = no_headers
    accept: Callable[[Response], None] = accept_any
    sleep: Callable[[float], None] = time.sleep

    def run(self, sink: PartialFile, progress: ProgressSink) -> None:
        """Appends to the entered `sink` what it lacks and finishes it; raises as `Source.fetch`."""
        attempts = Attempts(self.sleep)
        while sink.offset < sink.file.size:
            before = sink.offset
            try:
                self._attempt(sink, progress)
            except Refused:
                raise
            except (TryAgain, SourceUnavailable) as error:
                worth = min(1 << 20, max(1, sink.file.size // 100))
                attempts.failed(error, progressed=sink.offset - before >= worth)
        sink.finish()

    def _attempt(self, sink: PartialFile, progress: ProgressSink) -> None:
        headers = {**self.headers(), **_range_headers(sink, self.url)}
        with open_url(self.url, self.policy, headers) as response:
            check_passing(response)
            self.accept(response)
            _check_answer(response, sink, self.url)
            _note_origin(response, sink, self.url)
            while data := response.read(PIECE):
                sink.write(data)
                progress(Progress("download", sink.file.name, sink.offset, sink.file.size))
        if sink.offset < sink.file.size:
            raise TryAgain(f"{self.url} broke off at byte {sink.offset} of {sink.file.size}.")


def read_small(
    url: str,
    policy: FetchPolicy,
    *,
    most: int,
    headers: Callable[[], Mapping[str, str]] = no_headers,
    accept: Callable[[Response], None] = accept_any,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[bytes, Mapping[str, str]]:
    """The whole of a small answer, and its headers.

    Args:
        url, policy, headers, accept, sleep: As of `Transfer`.
        most: Bytes it may have.

    Raises:
        Refused: A status other than 200, or more bytes.
        SourceUnavailable: No whole answer in `MAX_ATTEMPTS`.
    """
    attempts = Attempts(sleep)
    while True:
        try:
            with open_url(url, policy, headers()) as response:
                check_passing(response)
                accept(response)
                if response.status != 200:
                    raise Refused(f"{response.shown_url} answers {response.status}.")
                return _read_all(response, most), response.headers
        except Refused:
            raise
        except (TryAgain, SourceUnavailable) as error:
            attempts.failed(error)


def _read_all(response: Response, most: int) -> bytes:
    body = bytearray()
    while data := response.read(PIECE):
        body += data
        if len(body) > most:
            raise Refused(f"{response.shown_url} answers more than the {most} bytes that such a file may have.")
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(body) != int(length[:18]):
        raise TryAgain(f"{response.shown_url} broke off at byte {len(body)}.")
    return bytes(body)


def _range_headers(sink: PartialFile, url: str) -> dict[str, str]:
    if not sink.offset:
        return {}
    headers = {"Range": f"bytes={sink.offset}-"}
    origin = sink.origin
    if origin is not None and origin[0] == url and origin[1]:
        headers["If-Range"] = origin[1]
    return headers


def _check_answer(response: Response, sink: PartialFile, url: str) -> None:
    shown = response.shown_url
    if response.status == 416:  # the server's file is shorter than what we hold: it is not the same file
        sink.reset()
        raise TryAgain(f"{shown} refuses to resume.")
    if response.status not in {200, 206}:
        raise Refused(f"{shown} answers {response.status}: the file is not there, or not for you.")
    if response.headers.get("content-encoding", "identity") != "identity":
        encoding = response.headers["content-encoding"]
        raise Refused(f"{shown} sends {encoding}-encoded data, which was not asked for.")
    total = _begin_full(response, sink) if response.status == 200 else _begin_part(response, sink, url)
    if total is not None and total != sink.file.size:
        sink.reset()
        raise Refused(f"{shown} has {total} bytes, the entry states {sink.file.size}: it is another file.")


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
        raise TryAgain(f"{response.shown_url} sends another part than the one asked for.")
    sink.resumed = sink.offset > 0
    return int(span[3])


def _note_origin(response: Response, sink: PartialFile, url: str) -> None:
    current = (url, _validator(response))
    if sink.origin != current:
        sink.origin = current


def _validator(response: Response) -> str:
    """A strong validator fit for If-Range (RFC 9110, 13.1.5), or "" if the server gives none."""
    etag = response.headers.get("etag", "")
    return etag if etag.startswith('"') else ""


def expect_digest(found: str, sink: PartialFile, who: str) -> None:
    """Raises DigestMismatch where a server announces another SHA-256 than the entry states, before a byte is fetched."""
    if found != sink.file.sha256:
        raise DigestMismatch(
            f"{who} announces {sink.file.name} with SHA-256 {found[:64]}, its entry states {sink.file.sha256}: it has "
            f"changed there. Pull the model's newest revision, or one that has the expected file."
        )
