"""The byte-level alphabet of GPT-2 (Radford et al. 2019): every byte as one printable character.

Printable Latin-1 bytes stand for themselves, the other 68 take the code points from U+0100 on in byte order.
"""

from __future__ import annotations


def _alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars: list[str] = []
    extra = 0
    for byte in range(256):
        if byte in printable:
            chars.append(chr(byte))
        else:
            chars.append(chr(0x100 + extra))
            extra += 1
    return tuple(chars)


BYTE_TO_CHAR = _alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def to_bytes(text: str) -> bytes | None:
    """The bytes that a token in the byte-level alphabet stands for; None if a character is not of the alphabet."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in text])
    except KeyError:
        return None
