// attention_neon.inc.h with the dot product of four bytes, which takes both sides with sign or both without: queries and keys are
// signed, weights and values are not.
//
// Of a number's row all high bytes lie before all low ones. Panels: [columns / 4, 16 rows, 4].
#pragma once

#include "dots_neon.inc.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Numbers [at, at + 16) of a row of `columns`.
EDGEWISE_INLINE void store_numbers(uint8_t* row, int32_t columns, int32_t at, uint8x16_t high, uint8x16_t low) {
  vst1q_u8(row + at, high);
  vst1q_u8(row + columns + at, low);
}
EDGEWISE_INLINE const uint8_t* numbers_at(const uint8_t* row, int at) { return row + at; }

// Of 16 rows of 16 bytes, a panel of as many columns.
EDGEWISE_INLINE void store_panel(uint8_t* panel, const int8x16_t (&rows)[16]) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    int32x4_t r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) r[i] = vreinterpretq_s32_s8(rows[4 * j + i]);
    const int32x4_t ac = vzip1q_s32(r[0], r[2]), ac2 = vzip2q_s32(r[0], r[2]);
    const int32x4_t bd = vzip1q_s32(r[1], r[3]), bd2 = vzip2q_s32(r[1], r[3]);
    uint8_t* to = panel + 16 * j;
    vst1q_u8(to, vreinterpretq_u8_s32(vzip1q_s32(ac, bd)));
    vst1q_u8(to + 64, vreinterpretq_u8_s32(vzip2q_s32(ac, bd)));
    vst1q_u8(to + 128, vreinterpretq_u8_s32(vzip1q_s32(ac2, bd2)));
    vst1q_u8(to + 192, vreinterpretq_u8_s32(vzip2q_s32(ac2, bd2)));
  }
}

// Of 16 columns of 16 bytes, a panel of as many rows. Without sign: a byte is its value + 128.
EDGEWISE_INLINE void store_turned_panel(uint8_t* panel, const int8x16_t (&columns)[16]) {
  const uint8x16_t raise = vdupq_n_u8(128);
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad) {
    uint8x16_t c[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) c[i] = veorq_u8(vreinterpretq_u8_s8(columns[4 * quad + i]), raise);
    const uint8x16_t ac = vzip1q_u8(c[0], c[2]), ac2 = vzip2q_u8(c[0], c[2]);
    const uint8x16_t bd = vzip1q_u8(c[1], c[3]), bd2 = vzip2q_u8(c[1], c[3]);
    uint8_t* to = panel + 64 * quad;
    vst1q_u8(to, vzip1q_u8(ac, bd));
    vst1q_u8(to + 16, vzip2q_u8(ac, bd));
    vst1q_u8(to + 32, vzip1q_u8(ac2, bd2));
    vst1q_u8(to + 48, vzip2q_u8(ac2, bd2));
  }
}

// kRows rows of `columns` signed numbers, which lie in rows of `stride`, times a panel.
template <int kRows>
EDGEWISE_INLINE void multiply_queries(const uint8_t* panel, int32_t columns, const uint8_t* numbers, int32_t stride,
                                      Ints (&sums)[kRows]) {
  for (int r = 0; r < kRows; ++r) sums[r] = splat_int(0);
  for (int part = 0; part < 2; ++part, numbers += stride) {
    for (int r = 0; r < kRows; ++r) sums[r] = shift_left<8>(sums[r]);
    EDGEWISE_ROLLED for (int32_t at = 0; at < columns; at += 16) {
      int8x16_t codes[kRows];
      for (int r = 0; r < kRows; ++r) load_codes(numbers + static_cast<int64_t>(r) * 2 * stride + at, codes[r]);
      add_sixteen<kRows>(panel + 16 * at, codes, sums);
    }
  }
}

// The same of numbers without sign and a panel of values + 128: 128 times a row's numbers is taken off in the end.
template <int kRows>
EDGEWISE_INLINE void multiply_weights(const uint8_t* panel, int32_t columns, const uint8_t* numbers, int32_t stride,
                                      Ints (&sums)[kRows]) {
  int32x4_t totals[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = splat_int(0);
  for (int r = 0; r < kRows; ++r) totals[r] = vdupq_n_s32(0);
  const uint8x16_t ones = vdupq_n_u8(1);
  for (int part = 0; part < 2; ++part, numbers += stride) {
    for (int r = 0; r < kRows; ++r) sums[r] = shift_left<8>(sums[r]);
    for (int r = 0; r < kRows; ++r) totals[r] = vshlq_n_s32(totals[r], 8);
    EDGEWISE_ROLLED for (int32_t at = 0; at < columns; at += 16) {
      uint8x16_t codes[kRows];
      for (int r = 0; r < kRows; ++r) load_codes(numbers + static_cast<int64_t>(r) * 2 * stride + at, codes[r]);
      add_sixteen<kRows>(panel + 16 * at, codes, sums);
      for (int r = 0; r < kRows; ++r) {
        totals[r] = vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(totals[r]), codes[r], ones));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) sums[r] = sums[r] - shift_left<7>(splat_int(vaddvq_s32(totals[r])));
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
