// attention_neon.inc.h with SMMLA and USMMLA, which multiply two rows of eight bytes by two others: the two bytes of a number are
// the rows of one side, so that one instruction makes four of the sums.
//
// Numbers lie in eights, their high bytes before their low ones. Panels: [columns / 8, 8 pairs of rows, 2, 8].
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

EDGEWISE_INLINE uint8x16_t low_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
EDGEWISE_INLINE uint8x16_t high_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// Numbers [at, at + 16) of a row.
EDGEWISE_INLINE void store_numbers(uint8_t* row, int32_t, int32_t at, uint8x16_t high, uint8x16_t low) {
  vst1q_u8(row + 2 * at, low_halves(high, low));
  vst1q_u8(row + 2 * at + 16, high_halves(high, low));
}
EDGEWISE_INLINE const uint8_t* numbers_at(const uint8_t* row, int at) { return row + 2 * at; }

// Of 16 rows of 16 bytes, a panel of as many columns.
EDGEWISE_INLINE void store_panel(uint8_t* panel, const int8x16_t (&rows)[16]) {
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) {
    const uint8x16_t a = vreinterpretq_u8_s8(rows[2 * pair]), b = vreinterpretq_u8_s8(rows[2 * pair + 1]);
    vst1q_u8(panel + 16 * pair, low_halves(a, b));
    vst1q_u8(panel + 128 + 16 * pair, high_halves(a, b));
  }
}

// Of 16 columns of 16 bytes, a panel of as many rows.
EDGEWISE_INLINE void store_turned_panel(uint8_t* panel, const int8x16_t (&columns)[16]) {
#pragma GCC unroll 2
  for (int eight = 0; eight < 2; ++eight) {
    uint8x16_t a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // columns i and i + 4 in turn
      const uint8x16_t left = vreinterpretq_u8_s8(columns[8 * eight + i]), right = vreinterpretq_u8_s8(columns[8 * eight + i + 4]);
      a[2 * i] = vzip1q_u8(left, right);
      a[2 * i + 1] = vzip2q_u8(left, right);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {  // i, i + 2, i + 4, i + 6; four rows in each of four registers
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        b[4 * i + 2 * half] = vzip1q_u8(a[2 * i + half], a[2 * i + 4 + half]);
        b[4 * i + 2 * half + 1] = vzip2q_u8(a[2 * i + half], a[2 * i + 4 + half]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      vst1q_u8(panel + 128 * eight + 32 * i, vzip1q_u8(b[i], b[4 + i]));
      vst1q_u8(panel + 128 * eight + 32 * i + 16, vzip2q_u8(b[i], b[4 + i]));
    }
  }
}

EDGEWISE_INLINE int32x4_t add_matrix(int32x4_t sums, int8x16_t numbers, int8x16_t rows) {
  return vmmlaq_s32(sums, numbers, rows);
}
EDGEWISE_INLINE int32x4_t add_matrix(int32x4_t sums, uint8x16_t numbers, int8x16_t rows) {
  return vusmmlaq_s32(sums, numbers, rows);
}
EDGEWISE_INLINE void load_numbers(const uint8_t* from, int8x16_t& to) { to = vreinterpretq_s8_u8(vld1q_u8(from)); }
EDGEWISE_INLINE void load_numbers(const uint8_t* from, uint8x16_t& to) { to = vld1q_u8(from); }

// kRows rows of `columns` numbers, which lie in rows of `stride`, times a panel of signed bytes, half of the panel at a time.
template <typename Bytes, int kRows>
EDGEWISE_INLINE void multiply_panel(const uint8_t* panel, int32_t columns, const uint8_t* numbers, int32_t stride, Ints (&sums)[kRows]) {
  for (int half = 0; half < 2; ++half, panel += 64) {
    int32x4_t dots[kRows][4];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dots[r][j] = vdupq_n_s32(0);
    }
    EDGEWISE_ROLLED for (int32_t at = 0; at < columns; at += 8) {
      int8x16_t rows[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) rows[j] = vreinterpretq_s8_u8(vld1q_u8(panel + 16 * at + 16 * j));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        Bytes both;
        load_numbers(numbers + static_cast<int64_t>(r) * 2 * stride + 2 * at, both);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) dots[r][j] = add_matrix(dots[r][j], both, rows[j]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const int64x2_t a = vreinterpretq_s64_s32(dots[r][2 * j]), b = vreinterpretq_s64_s32(dots[r][2 * j + 1]);
        const int32x4_t high = vreinterpretq_s32_s64(vzip1q_s64(a, b)), low = vreinterpretq_s32_s64(vzip2q_s64(a, b));
        sums[r].v[2 * half + j] = vaddq_s32(vshlq_n_s32(high, 8), low);
      }
    }
  }
}

template <int kRows>
EDGEWISE_INLINE void multiply_queries(const uint8_t* panel, int32_t columns, const uint8_t* numbers, int32_t stride,
                                      Ints (&sums)[kRows]) {
  multiply_panel<int8x16_t>(panel, columns, numbers, stride, sums);
}

template <int kRows>
EDGEWISE_INLINE void multiply_weights(const uint8_t* panel, int32_t columns, const uint8_t* numbers, int32_t stride,
                                      Ints (&sums)[kRows]) {
  multiply_panel<uint8x16_t>(panel, columns, numbers, stride, sums);
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
