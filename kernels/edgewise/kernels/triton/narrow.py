"""Numbers of 8 and 4 bits as floats, where asked for written out in PTX: the compiler's conversions of single bytes run at an
eighth of the rate of other instructions.

A byte beside the right exponent is a float: 0x4B0000uu is 2^23 + u, and the subtraction of 2^23 is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from edgewise.kernels.triton.launch import INTERPRETED

_NUMPY: tl.constexpr = tl.constexpr(INTERPRETED)


@triton.jit
def halves(x: tl.tensor, written_out: tl.constexpr) -> tl.tensor:
    """int8 or fp8 (e4m3) numbers as float16, which holds them exactly, four at a time.

    Written out, bytes stay four in a register until they are where the matrix instructions want them.
    """
    if _NUMPY or not written_out:
        value = x.to(tl.float16)
    elif x.dtype == tl.int8:
        # 0x6400 + u is 1024 + u for u of 8 bits; u = x + 128.
        value = tl.inline_asm_elementwise(
            """{
            .reg .b32 t, m;
            mov.b32 m, 0x64806480;
            xor.b32 t, $2, 0x80808080;
            prmt.b32 $0, t, 0x64646464, 0x4140;
            prmt.b32 $1, t, 0x64646464, 0x4342;
            sub.f16x2 $0, $0, m;
            sub.f16x2 $1, $1, m;
            }""",
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    else:
        value = tl.inline_asm_elementwise(
            """{
            .reg .b16 a, b;
            mov.b32 {a, b}, $2;
            cvt.rn.f16x2.e4m3x2 $0, a;
            cvt.rn.f16x2.e4m3x2 $1, b;
            }""",
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return value


@triton.jit
def singles(x: tl.tensor, written_out: tl.constexpr) -> tl.tensor:
    """int8 numbers as float32, exactly."""
    if _NUMPY or not written_out:
        value = x.to(tl.float32)
    else:
        value = tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            xor.b32 t, $4, 0x80808080;
            prmt.b32 $0, t, 0x4B000000, 0x7440;
            prmt.b32 $1, t, 0x4B000000, 0x7441;
            prmt.b32 $2, t, 0x4B000000, 0x7442;
            prmt.b32 $3, t, 0x4B000000, 0x7443;
            sub.f32 $0, $0, 0f4B000080;
            sub.f32 $1, $1, 0f4B000080;
            sub.f32 $2, $2, 0f4B000080;
            sub.f32 $3, $3, 0f4B000080;
            }""",
            "=r,=r,=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    return value


@triton.jit
def nibbles(
    x: tl.tensor,
    scale: tl.tensor,
    least: tl.tensor,
    high: tl.constexpr,
    dtype: tl.constexpr,
    written_out: tl.constexpr,
) -> tl.tensor:
    """code * scale + least for the low or high four bits of bytes, rounded to `dtype`.

    Written out, to bfloat16 on a card, with scale and least rounded to it first: together an error of 2^-8, where the code's own
    is some 2^-5. (Triton's interpreter has no PTX, and computes as if it were not written out.)
    """
    if _NUMPY or not written_out or dtype != tl.bfloat16:
        code = (x >> 4) if high else (x & 15)
        value = tl.fma(code.to(tl.float32), scale, least).to(dtype)
    else:
        value = tl.inline_asm_elementwise(
            """{
            .reg .b32 t, a, b, one, less;
            """
            + ("shr.b32 t, $2, 4;" if high else "mov.b32 t, $2;")
            + """
            and.b32 t, t, 0x0F0F0F0F;
            prmt.b32 a, t, 0x43434343, 0x4140;
            prmt.b32 b, t, 0x43434343, 0x4342;
            mov.b32 one, 0x3F803F80;
            mov.b32 less, 0xC300C300;
            fma.rn.bf16x2 a, a, one, less;
            fma.rn.bf16x2 b, b, one, less;
            fma.rn.bf16x2 $0, a, $3, $5;
            fma.rn.bf16x2 $1, b, $4, $6;
            }""",
            "=r,=r,r,r,r,r,r",
            [x, scale.to(tl.bfloat16), least.to(tl.bfloat16)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    return value


@triton.jit
def nibble_codes(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The low and the high four bits of bytes, int8."""
    if _NUMPY:
        low, high = (x & 15).to(tl.int8), (x >> 4).to(tl.int8)
    else:
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            and.b32 $0, $2, 0x0F0F0F0F;
            shr.b32 t, $2, 4;
            and.b32 $1, t, 0x0F0F0F0F;
            }""",
            "=r,=r,r",
            [x],
            dtype=(tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def products_of_4(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """total + the products of the four signed bytes of words with each other (int32)."""
    if _NUMPY:
        for at in tl.static_range(4):
            total += ((a << (24 - 8 * at)) >> 24) * ((b << (24 - 8 * at)) >> 24)
    else:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
        )
    return total


@triton.jit
def to_e4m3(x: tl.tensor) -> tl.tensor:
    """float32 numbers of at most 448 to the nearest of fp8 (e4m3), half to even.

    They are rounded here, by their bits, so that the conversion itself has nothing left to decide: Triton's interpreter drops
    bits where a card rounds.
    """
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    tiny = (x + 24576.0) - 24576.0  # 1.5 * 2**14, whose last bit is 2**-9, the step of e4m3 below 2**-6
    return tl.where(tl.abs(x) < 0.015625, tiny, normal).to(tl.float8e4nv)
