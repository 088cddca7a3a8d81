"""KV pages between two appliances of one network (docs/kv-handover.md): what is asked, and the bytes of an answer with pages.

    POST LOOKUP   PageQuery with no names -> PageOffer: where this key's chain of names begins
    POST LOOKUP   PageQuery -> PageOffer: how many of its names, from the first on, are there
    POST PAGES    PageQuery -> as many of those pages as one answer carries, in order

Bodies of queries and offers are CBOR. An answer with pages is a header, a table of names and SHA-256 digests, a CRC-32 of both,
and the contents; a digest covers the name too, so that a page cannot stand in another's place.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeInt

from edgewise.core.errors import BadMessage
from edgewise.wire.messages import Digest, Message

LOOKUP: Final = "/edgewise/v1/kv/lookup"
PAGES: Final = "/edgewise/v1/kv/pages"
PAGES_TYPE: Final = "application/vnd.edgewise.kv-pages"

NAME_BYTES: Final = 32
MAX_NAMES: Final = 8192
_HEAD = struct.Struct("!4sHHI")  # magic, version, pages, bytes of a page
_MAGIC = b"EWKV"
_VERSION = 1
_ROW_BYTES = NAME_BYTES + 32
_CRC = struct.Struct("!I")

Form = Literal["exact", "int4"]
FORMS: Final[tuple[Form, ...]] = ("exact", "int4")

Fingerprint = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class PageQuery(Message):
    """Attributes:
    digest: Of the model.
    fingerprint: `fingerprint` of the model's pages and this key's `start`; empty while the start is not known.
    names: Of pages, in the order of their tokens, joined.
    form: Of the pages that are asked for; "int4" only of an appliance whose offer names it.
    """

    digest: Digest
    fingerprint: Fingerprint = ""
    names: bytes = Field(default=b"", max_length=MAX_NAMES * NAME_BYTES)
    form: Form = "exact"


class PageOffer(Message):
    """Attributes:
    start: Where the chain of names of this key's pages begins.
    count: How many of the names asked for, from the first on, are there.
    same: Whether the fingerprints agree; pages are only given if they do.
    forms: In which forms pages are given.
    """

    start: Annotated[bytes, Field(min_length=NAME_BYTES, max_length=NAME_BYTES)]
    count: NonNegativeInt = 0
    same: bool = False
    forms: tuple[str, ...] = ("exact",)


def fingerprint(pages: str, start: bytes) -> str:
    """Of one key's pages of one model: everything that their bits depend on but the tokens, and whose they are."""
    return hashlib.sha256(f"edgewise-kv-1\n{pages}\n".encode() + start).hexdigest()


def split(names: bytes) -> list[bytes]:
    """Raise `BadMessage` if they are cut."""
    if len(names) % NAME_BYTES:
        raise BadMessage(f"Names of pages have {len(names)} bytes, no multiple of {NAME_BYTES}.")
    return [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]


def pack_pages(names: Sequence[bytes], contents: Sequence[bytes]) -> bytes:
    """The answer that carries pages of one size."""
    head = _HEAD.pack(_MAGIC, _VERSION, len(names), len(contents[0]) if contents else 0)
    head += b"".join(name + _digest(name, content) for name, content in zip(names, contents, strict=True))
    return b"".join((head, _CRC.pack(zlib.crc32(head)), *contents))


def unpack_pages(payload: bytes, names: Sequence[bytes], page_bytes: int) -> list[bytes]:
    """The contents of the first of `names`, every one of them checked.

    Raises:
        BadMessage: It is cut, for other names or another size, or not what was packed.
    """
    if len(payload) < _HEAD.size:
        raise BadMessage("An answer with KV pages is cut.")
    magic, version, count, size = _HEAD.unpack_from(payload)
    table = _HEAD.size + count * _ROW_BYTES
    if magic != _MAGIC or version != _VERSION or count > len(names) or (count and size != page_bytes):
        raise BadMessage(
            f"An answer with KV pages has another form (version {version}, {count} pages of {size} bytes)."
        )
    if len(payload) != table + _CRC.size + count * size:
        raise BadMessage("An answer with KV pages is cut.")
    if _CRC.unpack_from(payload, table)[0] != zlib.crc32(payload[:table]):
        raise BadMessage("The table of an answer with KV pages is damaged.")
    contents = []
    for index, name in enumerate(names[:count]):
        at = _HEAD.size + index * _ROW_BYTES
        row = payload[at : at + _ROW_BYTES]
        start = table + _CRC.size + index * size
        content = payload[start : start + size]
        if row != name + _digest(name, content):
            raise BadMessage(f"KV page {index} of an answer is not the one that was asked for, or damaged.")
        contents.append(content)
    return contents


def _digest(name: bytes, content: bytes) -> bytes:
    return hashlib.sha256(name + content).digest()
