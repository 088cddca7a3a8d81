"""What travels over MQTT beside the jobs' own messages: questions, refusals, and blobs in blocks that their receiver pulls."""

from __future__ import annotations

import zlib
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from edgewise.core.errors import BadMessage, EdgewiseError, EngineFault, InvalidRequest, LinkLost, error_class
from edgewise.wire.messages import Blob, CloudInfo, Message, Refused, Sha256

BLOCK = 128 * 1024
"""Bytes of a block of a blob."""
BLOCKS = 8
"""Blocks that a receiver has asked for and not got, at most."""
CREDIT = 64
"""Chunks of a stream that may be on their way at once: sent, and not yet read as far as the device has said."""


class Ask(Message):
    """A question of a device: what the cloud can do, or that it should pull a blob."""

    v: Literal[1] = 1
    ask: Literal["info", "blob"]
    blob: Blob | None = None


class Answer(Message):
    """The answer to a question; `refused` instead of what was asked for."""

    v: Literal[1] = 1
    info: CloudInfo | None = None
    refused: Refused | None = None


class BlobGet(Message):
    """Send `blocks` blocks from `offset` on."""

    v: Literal[1] = 1
    sha256: Sha256
    offset: NonNegativeInt
    blocks: Annotated[PositiveInt, Field(le=BLOCKS)]


class BlobBlock(Message):
    """Bytes [offset, offset + len(data)) of a blob, and their CRC-32 (that of zlib)."""

    v: Literal[1] = 1
    sha256: Sha256
    offset: NonNegativeInt
    total: NonNegativeInt
    crc: NonNegativeInt
    data: Annotated[bytes, Field(max_length=BLOCK)]

    def check(self, sha256: str, offset: int) -> bool:
        """Whether it is the block that its receiver waits for; False for one of another place.

        Raises:
            BadMessage: It is damaged.
        """
        if self.sha256 != sha256 or self.offset != offset or not self.data:
            return False
        if zlib.crc32(self.data) != self.crc:
            raise BadMessage(f"The block at {self.offset} of the blob {sha256[:12]} is damaged.")
        return True


class BlobDone(Message):
    """The transfer is over: all arrived and the hash is right, or why not."""

    v: Literal[1] = 1
    sha256: Sha256
    refused: Refused | None = None


def block_at(blob: Blob, data: bytes, offset: int) -> BlobBlock:
    """The block `data` of a blob, which begins at `offset`."""
    return BlobBlock(sha256=blob.sha256, offset=offset, total=blob.bytes, crc=zlib.crc32(data), data=data)


def refusal(error: EdgewiseError) -> Refused:
    """How an error is told over MQTT."""
    return Refused(
        code=error.code, message=error.message[:1000], status=error.http_status, retry_after_s=error.retry_after_s
    )


def told(refused: Refused) -> EdgewiseError:
    """The error that a refusal tells of."""
    kind = error_class(refused.code)
    if kind is None:
        kind = LinkLost if refused.status == 503 else EngineFault if refused.status >= 500 else InvalidRequest
    return kind(refused.message, retry_after_s=refused.retry_after_s)
