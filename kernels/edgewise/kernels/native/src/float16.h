// 16-bit floats by plain integer arithmetic, for code that runs on every processor.
#pragma once

#include <cstdint>
#include <cstring>

namespace edgewise {

// Always inlined: a copy compiled for one instruction set must not serve code for another.
#define EDGEWISE_SCALAR static inline __attribute__((always_inline))

EDGEWISE_SCALAR uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

EDGEWISE_SCALAR float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

EDGEWISE_SCALAR float from_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponent's bias grows by 112: a multiplication, which also makes subnormal halves right.
  return float_of_bits(sign | float_bits(float_of_bits(rest << 13) * 0x1p112f));
}

// To the nearest, half to even; infinity from 65520.
EDGEWISE_SCALAR uint16_t to_float16(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // below the least normal half: adding 0.5 rounds to multiples of 2^-24
    return static_cast<uint16_t>(sign | (float_bits(float_of_bits(rest) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

EDGEWISE_SCALAR float from_bfloat16(uint16_t x) { return float_of_bits(static_cast<uint32_t>(x) << 16); }

// To the nearest, half to even; NaN stays NaN.
EDGEWISE_SCALAR uint16_t to_bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace edgewise
