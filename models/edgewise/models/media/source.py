"""Where a picture in a request comes from: a data URL, or an https URL that is fetched behind the guard of `security.fetch`."""

from __future__ import annotations

import base64
import binascii
import time
from typing import Final
from urllib.parse import unquote_to_bytes

from edgewise.core.errors import InvalidRequest, SourceUnavailable
from edgewise.core.sizes import mib
from edgewise.security.fetch import FetchPolicy, UrlRefused, open_url

_CHUNK: Final = 1 << 16
_WHOLE_S: Final = 60.0
"""Longest time for one file, however steadily it drips."""


def read_source(url: str, param: str, *, max_bytes: int, policy: FetchPolicy | None) -> bytes:
    """The bytes behind `url`. Waits for the network: call it in a thread.

    Args:
        url: "data:image/png;base64,..." or "https://...".
        param: The field that it came in, for messages.
        max_bytes: More are refused.
        policy: What may be opened; None opens nothing.

    Raises:
        InvalidRequest: Another scheme, malformed, too large, an address that is not opened, or an answer that is no file.
    """
    if check_scheme(url, param) == "data":
        return _data(url, param, max_bytes)
    if policy is None:
        raise InvalidRequest(
            f"'{param}' is a URL, and this service fetches nothing (`offline = true`): send a data URL.", param=param
        )
    return _fetch(url, param, max_bytes, policy)


def check_scheme(url: str, param: str) -> str:
    """The URL's scheme; raises `InvalidRequest` for all but "data", "http" and "https", file names and paths among them."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme not in ("data", "http", "https"):
        raise InvalidRequest(
            f"'{param}' begins with {url[:8]!r}: send a data URL (data:image/png;base64,...) or an https URL.",
            param=param,
        )
    return scheme


def _data(url: str, param: str, max_bytes: int) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise InvalidRequest(
            f"'{param}' is a data URL without a comma: data:image/png;base64,... is expected.", param=param
        )
    try:
        plain = unquote_to_bytes(body)
        data = base64.b64decode(plain, validate=True) if head.lower().endswith(";base64") else plain
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"'{param}' is a data URL whose base64 is malformed: {error}. Encode it again.", param=param
        ) from error
    if len(data) > max_bytes:
        raise _too_large(param, max_bytes)
    return data


def _fetch(url: str, param: str, max_bytes: int, policy: FetchPolicy) -> bytes:
    ends = time.monotonic() + _WHOLE_S
    try:
        with open_url(url, policy) as response:
            if response.status != 200:
                raise InvalidRequest(
                    f"'{param}': {response.shown_url} answers {response.status}: check the URL, or send the picture itself.",
                    param=param,
                )
            parts: list[bytes] = []
            left = max_bytes
            while part := response.read(_CHUNK):
                left -= len(part)
                if left < 0:
                    raise _too_large(param, max_bytes)
                if time.monotonic() > ends:
                    raise InvalidRequest(
                        f"'{param}': {response.shown_url} did not arrive within {_WHOLE_S:g} s: send the picture itself.",
                        param=param,
                    )
                parts.append(part)
            return b"".join(parts)
    except UrlRefused as error:
        raise UrlRefused(f"'{param}': {error.message}", param=param) from error
    except SourceUnavailable as error:
        raise InvalidRequest(f"'{param}': {error.message} Send the picture itself.", param=param) from error


def _too_large(param: str, max_bytes: int) -> InvalidRequest:
    return InvalidRequest(f"'{param}' has more than {mib(max_bytes)}: send it smaller or compressed.", param=param)
