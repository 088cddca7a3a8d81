"""Small GGUF files with a body of one's choice."""

from __future__ import annotations

import struct

_I8 = 24


def gguf_bytes(body: bytes) -> bytes:
    """A valid GGUF file of 64 bytes and `body`, which is its one tensor; whole blocks of 32 bytes are not padded."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, len(body), _I8, 0)
    return head + bytes(-len(head) % 32) + body + bytes(-len(body) % 32)
