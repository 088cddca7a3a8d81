// Integer products of a group with NEON's dot product.
#pragma once

#include "dots_neon.inc.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

#if defined(EDGEWISE_ISA_I8MM)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kStreamRows = 4;
constexpr int64_t kPrefetchBytes = 1024;

EDGEWISE_INLINE void prefetch(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(at + i);
}

template <int kRows, int kColumns>
EDGEWISE_INLINE void dot_int8(const uint8_t* w, const int8_t* x, int64_t stride, const int32_t*, int64_t, Ints* dots) {
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  for (int half = 0; half < kColumns / 16; ++half, w += 256) {
    int8x16_t codes[kRows];
    for (int i = 0; i < kRows; ++i) codes[i] = vld1q_s8(x + i * stride + 16 * half);
    add_sixteen<kRows>(w, codes, dots);
  }
}

template <int kRows, int kLane>
EDGEWISE_INLINE void add_eight(const uint8_t* w, const int8x16_t* x, Ints* dots) {
  int8x16_t low[4], high[4];
  for (int j = 0; j < 4; ++j) {
    const uint8x16_t both = vld1q_u8(w + 16 * j);
    low[j] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
    high[j] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
  }
  for (int i = 0; i < kRows; ++i) {
    add_products<kLane>(dots[i], low, x[i]);
    add_products<kLane + 1>(dots[i], high, x[i]);
  }
}

template <int kRows>
EDGEWISE_INLINE void dot_int4(const uint8_t* w, const int8_t* x, int64_t stride, Ints* dots) {
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  for (int half = 0; half < 2; ++half, w += 128) {
    int8x16_t codes[kRows];
    for (int i = 0; i < kRows; ++i) codes[i] = vld1q_s8(x + i * stride + 16 * half);
    add_eight<kRows, 0>(w, codes, dots);
    add_eight<kRows, 2>(w + 64, codes, dots);
  }
}

// Words (column 0, column 1) of 16 rows to two columns.
EDGEWISE_INLINE void load_bfloat16_pairs(const uint16_t* w, Floats& even, Floats& odd) {
  for (int j = 0; j < 4; ++j) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(w + 8 * j));
    even.v[j] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    odd.v[j] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
