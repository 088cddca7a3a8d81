"""Multipart forms (RFC 7578) as they arrive, within limits of bytes and time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from edgewise.api.errors import BodyTimeoutError, NotJson
from edgewise.core.errors import Cancelled, InvalidRequest, PayloadTooLarge
from edgewise.core.files import translate_os_errors
from edgewise.core.patience import within

_MAX_OVERHEAD: Final = 64 * 1024
"""Bytes of a form beside its file."""
_LEAST_RATE: Final = 1024
"""Bytes a second, on average, after the first silence: what bounds the silences alone bounds no sender."""


def demand_multipart(request: Request, what: str, param: str | None = None) -> None:
    """Raises `NotJson`, 415, if the body is no form; `what` is sent, in the words of the message."""
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "multipart/form-data":
        shown = media_type[:80] or "missing"
        raise NotJson(f"The content type is {shown}: send {what} as multipart/form-data.", param=param)


@asynccontextmanager
async def parsed(
    request: Request,
    *,
    main: str,
    max_bytes: int,
    silence_s: float,
    setting: str,
    buffered: str,
    max_files: int,
    max_fields: int,
    max_field_bytes: int,
) -> AsyncGenerator[FormData, None]:
    """The form of a request; its files are there as long as this is open.

    Args:
        main: The field that messages about the whole name.
        silence_s: A sender that sends nothing for so long is given up, and so is one that keeps behind `_LEAST_RATE` by more.
        setting: Names the limit.
        buffered: What is kept on disk meanwhile, in the words of a message: "an upload".

    Raises:
        PayloadTooLarge, BodyTimeoutError, InvalidRequest: Said while the form arrives.
        StorageError: The disk for temporary files is full.
    """
    parts = paced(request, max_bytes, silence_s, setting)
    parser = MultiPartParser(
        request.headers, parts, max_files=max_files, max_fields=max_fields, max_part_size=max_field_bytes
    )
    try:
        with translate_os_errors(f"buffer {buffered} in", Path("the folder for temporary files")):
            form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}", param=main) from error
    except KeyError as error:  # no boundary in the content type
        raise InvalidRequest("The form's content type names no boundary.", param=main) from error
    try:
        yield form
    finally:
        await form.close()


def too_large(max_bytes: int, setting: str = "files.max_bytes", param: str | None = None) -> PayloadTooLarge:
    """Of a form's file; `param` is its field, where that is known."""
    what = "The file" if param is None else f"'{param}'"
    return PayloadTooLarge(
        f"{what} is larger than this service accepts ({setting}: {max_bytes} bytes): send a smaller one, or raise the setting.",
        param=param,
    )


async def paced(
    request: Request,
    max_bytes: int,
    silence_s: float,
    setting: str = "files.max_bytes",
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[bytes, None]:
    """The body of a form in parts; `setting` names its limit. Raises as `parsed`."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes + _MAX_OVERHEAD:
        raise too_large(max_bytes, setting)
    size = 0
    stream = request.stream()
    started = clock()
    while True:
        left = started + silence_s + size / _LEAST_RATE - clock()
        late = partial(_late, silence_s, slow=left < silence_s and size > 0)
        if left <= 0:
            raise late()
        try:
            part = await within(anext(stream, None), min(silence_s, left), late)
        except ClientDisconnect as error:
            raise Cancelled("The client left while its file was being read.") from error
        if part is None:
            return
        size += len(part)
        if size > max_bytes + _MAX_OVERHEAD:
            raise too_large(max_bytes, setting)
        yield part


def _late(silence_s: float, *, slow: bool) -> BodyTimeoutError:
    if slow:
        return BodyTimeoutError(
            f"The file arrives too slowly: after {silence_s:g} s, {_LEAST_RATE} bytes a second are the least."
        )
    return BodyTimeoutError(f"Nothing of the file arrived for {silence_s:g} s.")
