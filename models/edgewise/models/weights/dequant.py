"""Decoding of stored numbers by NumPy: plain types of both formats, and the block formats of GGUF (the larger ones of which
are in `ggml_blocks`).

Block layouts are those of ggml: Q4_0 = (d: f16, 16 bytes of nibbles), Q4_1 = (d: f16, m: f16, 16 bytes of nibbles),
Q8_0 = (d: f16, 32 x i8); the low nibbles hold elements 0 to 15, the high ones 16 to 31. Values are d * (q - 8), d * q + m and
d * q, each operation rounded to float32, which makes them equal bit for bit to those of ggml's reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.models.weights.ggml_blocks import BLOCKS, Bytes, Floats, f16


@dataclass(frozen=True, slots=True)
class Codec:
    """How a type is stored: `block` elements take `block_bytes` bytes.

    `decode` takes uint8[n * block_bytes] and gives [n * block]: float32 for every float type up to 32 bits and every block
    format, else the type itself.
    """

    block: int
    block_bytes: int
    decode: Callable[[Bytes], NDArray[Any]]


def _plain(dtype: str) -> Codec:
    return Codec(1, np.dtype(dtype).itemsize, lambda raw: raw.view(dtype))


def _decode_f16(raw: Bytes) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _decode_bf16(raw: Bytes) -> Floats:
    bits: NDArray[np.uint32] = raw.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _e4m3_values() -> Floats:
    """Every value of fp8 e4m3 (1 sign, 4 exponent bits with bias 7, 3 of mantissa; no infinity, all ones is NaN)."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    positive = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), normal)
    positive[127] = np.nan
    return np.concatenate((positive, -positive)).astype(np.float32)


_E4M3 = _e4m3_values()


def _decode_e4m3(raw: Bytes) -> Floats:
    return _E4M3[raw]


def _nibbles(packed: Bytes) -> Bytes:
    """[n, 16] bytes -> [n, 32] values from 0 to 15."""
    values = np.empty((packed.shape[0], 32), np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[:, :16])
    np.right_shift(packed, 4, out=values[:, 16:])
    return values


def _decode_q4_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 18)
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= 8.0
    values *= f16(blocks[:, :2])
    return values.reshape(-1)


def _decode_q4_1(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 20)
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= f16(blocks[:, :2])
    values += f16(blocks[:, 2:4])
    return values.reshape(-1)


def _decode_q8_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 34)
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= f16(blocks[:, :2])
    return values.reshape(-1)


# By the name that the file formats use; both name plain types alike.
CODECS: dict[str, Codec] = {
    "F64": _plain("<f8"),
    "F32": _plain("<f4"),
    "F16": Codec(1, 2, _decode_f16),
    "BF16": Codec(1, 2, _decode_bf16),
    "F8_E4M3": Codec(1, 1, _decode_e4m3),
    "I64": _plain("<i8"),
    "I32": _plain("<i4"),
    "I16": _plain("<i2"),
    "I8": _plain("i1"),
    "U64": _plain("<u8"),
    "U32": _plain("<u4"),
    "U16": _plain("<u2"),
    "U8": _plain("u1"),
    "BOOL": _plain("?"),
    "Q4_0": Codec(32, 18, _decode_q4_0),
    "Q4_1": Codec(32, 20, _decode_q4_1),
    "Q8_0": Codec(32, 34, _decode_q8_0),
    **{name: Codec(*block) for name, block in BLOCKS.items()},
}
