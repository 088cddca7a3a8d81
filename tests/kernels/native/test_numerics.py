"""Bits that the number `NATIVE_NUMERICS` stands for: of a product in each integer format, and of attention over int8 pages."""

from __future__ import annotations

import hashlib

import pytest
import torch

from edgewise.kernels.attention import paged_attention
from edgewise.kernels.native.formats import WeightFormat
from edgewise.kernels.native.library import NATIVE_NUMERICS, use_isa
from edgewise.kernels.native.packed import PackedMatrix, pack
from edgewise.kernels.native.quantized_linear import quantized_linear
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from tests.kernels.native.weights import BLOCKS, LAYOUTS

PINNED_FOR = 3
PINNED = {
    "INT8": "4ba5f0a664192009",
    "INT4": "bf9214f0854d54f7",
    "INT4_EVEN": "eb7e194386cd328f",
    "INT8_ROTATED": "7779f17f0eb46c09",
    "INT8_MIN": "df758b03aec4c6b0",
    "INT4_K": "6e9c33769bc09e85",
    "INT8_K": "0576aedd8a845aa8",
    "INT8_K16": "cc948452ed4876a4",
    "attention": "6dc42403081d4d58",
}


def numbers(*shape: int, first: int = 0) -> torch.Tensor:
    """From -2 to 2, the same with every version of torch: integers, and one division."""
    count = torch.Size(shape).numel()
    return (((torch.arange(first, first + count) * 7919) % 1009 - 504).float() / 252.0).reshape(shape)


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]


def product(weight_format: WeightFormat) -> torch.Tensor:
    weight = packed(weight_format)
    x = numbers(5, weight.cols, first=1)
    x[2, 37] = 60.0  # a large group
    return quantized_linear(x, weight, None, "store")


def packed(weight_format: WeightFormat) -> PackedMatrix:
    if weight_format.takes_floats:
        return pack(numbers(48, 160), weight_format)
    kind = BLOCKS[weight_format]
    columns, size, halves = LAYOUTS[kind]
    raw = (numbers(48, 2, size).abs() * 126.0).to(torch.uint8)
    for at in halves:
        raw[..., at : at + 2] = (numbers(48, 2, first=at) / 64.0).half().view(torch.uint8).view(48, 2, 2)
    matrix = PackedMatrix.zeros(48, 2 * columns, weight_format)
    matrix.pack_blocks(raw.flatten(1), kind, 0)
    return matrix


def attention() -> torch.Tensor:
    tokens, heads, kv_heads, head_dim, context = 3, 4, 2, 64, 300
    pages = -(-context // PAGE_TOKENS)
    shape = (pages, kv_heads, PAGE_TOKENS, head_dim)
    codes = [(numbers(*shape, first=first) * 60.0).to(torch.int8) for first in (3, 5)]
    scales = [(numbers(*shape[:3], first=first).abs() + 0.5) / 64.0 for first in (7, 11)]
    positions = torch.arange(context - tokens, context)
    meta = AttentionMeta(
        (tokens,), (context,), positions, positions, torch.arange(pages, dtype=torch.int32).reshape(1, -1)
    )
    kv = KVLayer(*codes, *scales)
    return paged_attention(numbers(tokens, heads, head_dim), kv, meta, scale=0.125, back_end="native")


def test_bits_are_those_of_this_number(isas: list[str]) -> None:
    for isa in isas:
        use_isa(isa)
        found = {it.name: digest(product(it)) for it in WeightFormat if not it.is_float}
        found["attention"] = digest(attention())
        if (found, NATIVE_NUMERICS) != (PINNED, PINNED_FOR):
            pytest.fail(
                f"bits of native kernels ({isa}) are not those pinned for number {PINNED_FOR}; the number is {NATIVE_NUMERICS}. "
                "If results were meant to change, raise NATIVE_NUMERICS (kernels/native/library.py) and kNumerics (src/abi.h), "
                f"so that pages stored before are not continued, and pin these: {found}"
            )
