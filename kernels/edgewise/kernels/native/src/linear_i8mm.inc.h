// Integer products of a group with SMMLA, which multiplies two rows of eight bytes by two others: twice the products of a dot
// product's instruction, for tiles of four and more rows.
//
// Rows of activations lie in pairs, and so do rows of the panel: products of a pair come as (first row, panel row 0), (first, 1),
// (second, 0), (second, 1). Sums stay in that order until the tile ends, with scales brought to it. Of three rows and fewer dot
// products are as quick: bringing the panel's rows into pairs costs as many instructions as it saves.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr bool is_paired(int rows) { return rows >= 4; }
// Floats that hold the sums of a tile; of an odd number of rows the last is paired with itself.
constexpr int sums_of(int rows) { return is_paired(rows) ? (rows + 1) / 2 * 2 : rows; }

// The row `right` of a pair of a tile of kRows rows.
template <int kRows>
constexpr int row_of(int pair, bool right) {
  return right && 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair;
}

EDGEWISE_INLINE int8x16_t low_words(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
EDGEWISE_INLINE int8x16_t high_words(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
EDGEWISE_INLINE float32x4_t low_pair(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
EDGEWISE_INLINE float32x4_t high_pair(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }

// Codes of a group by eight columns and pairs of rows.
template <int kPairs>
struct PairsOfCodes {
  int8x16_t eights[kGroup / 8][kPairs];
};

template <int kRows, int kPairs>
EDGEWISE_INLINE void pair_codes(const int8_t* codes, int64_t stride, PairsOfCodes<kPairs>& out) {
#pragma GCC unroll 4
  for (int pair = 0; pair < kPairs; ++pair) {
    const int8_t *left = codes + row_of<kRows>(pair, false) * stride, *right = codes + row_of<kRows>(pair, true) * stride;
#pragma GCC unroll 2
    for (int at = 0; at < kGroup / 8; at += 2) {
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(left + 8 * at)), b = vreinterpretq_s64_s8(vld1q_s8(right + 8 * at));
      out.eights[at][pair] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
      out.eights[at + 1][pair] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
  }
}

// Eight columns of four rows of the panel: `first` of rows 0 and 1, `second` of rows 2 and 3.
template <bool kBytes>
EDGEWISE_INLINE void load_pairs(const uint8_t* w, int8x16_t& first, int8x16_t& second) {
  int8x16_t a, b;
  if constexpr (kBytes) {
    a = vreinterpretq_s8_u8(vld1q_u8(w));
    b = vreinterpretq_s8_u8(vld1q_u8(w + 64));
  } else {
    const uint8x16_t both = vld1q_u8(w);
    a = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
    b = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
  }
  first = low_words(a, b);
  second = high_words(a, b);
}

// `w`: the first eight columns of 2 * kPanel rows of the panel; products of kEights times eight columns.
template <bool kBytes, int kEights, int kPairs, int kPanel>
EDGEWISE_INLINE void dot_pairs(const uint8_t* w, const int8x16_t (*codes)[kPairs], int32x4_t (&dots)[kPairs][kPanel]) {
#pragma GCC unroll 4
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
    for (int j = 0; j < kPanel; ++j) dots[pair][j] = vdupq_n_s32(0);
  }
  EDGEWISE_ROLLED for (int k = 0; k < kEights; ++k, w += kBytes ? 128 : 64) {
    int8x16_t panel[kPanel];
#pragma GCC unroll 4
    for (int q = 0; q < kPanel / 2; ++q) load_pairs<kBytes>(w + 16 * q, panel[2 * q], panel[2 * q + 1]);
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int j = 0; j < kPanel; ++j) dots[pair][j] = vmmlaq_s32(dots[pair][j], codes[k][pair], panel[j]);
    }
  }
}

// A number of each row of a pair, where its products lie.
EDGEWISE_INLINE float32x4_t of_pair(float left, float right) { return vcombine_f32(vdup_n_f32(left), vdup_n_f32(right)); }

// Numbers of the panel's rows, where products lie: those of 4 * kQuarters rows from quarter `from`.
template <int kQuarters>
EDGEWISE_INLINE void of_panel(Floats numbers, int from, float32x4_t (&out)[2 * kQuarters]) {
#pragma GCC unroll 4
  for (int q = 0; q < kQuarters; ++q) {
    out[2 * q] = low_pair(numbers.v[from + q], numbers.v[from + q]);
    out[2 * q + 1] = high_pair(numbers.v[from + q], numbers.v[from + q]);
  }
}

// add_group for rows in pairs, kQuarters quarters of the panel from `from` on: as many as leave registers for their sums.
template <WeightFormat kFormat, int kRows, bool kSome, int kPairs, int kQuarters>
EDGEWISE_INLINE void add_quarters(const GroupOfWeights& w, const PairsOfCodes<kPairs>& codes, const RoundedRows& x, int64_t at,
                                  int64_t groups, int from, Floats* acc) {
  constexpr bool kTwice = kFormat == WeightFormat::kInt8K16;
  int32x4_t dots[kPairs][2 * kQuarters], seconds[kPairs][2 * kQuarters];
  const uint8_t* panel = w.codes + 16 * from;
  if constexpr (kTwice) {
    dot_pairs<true, kGroup / 16>(panel, codes.eights, dots);
    dot_pairs<true, kGroup / 16>(panel + group_bytes(kFormat) / 2, codes.eights + kGroup / 16, seconds);
  } else {
    dot_pairs<has_bytes(kFormat), kGroup / 8>(panel, codes.eights, dots);
  }
  float32x4_t scales[2 * kQuarters], others[2 * kQuarters];
  of_panel<kQuarters>(w.scale, from, scales);
  if constexpr (kTwice) of_panel<kQuarters>(w.second, from, others);
  if constexpr (has_minimum(kFormat)) of_panel<kQuarters>(w.minimum, from, others);
#pragma GCC unroll 4
  for (int pair = 0; pair < kPairs; ++pair) {
    const int64_t left = at + row_of<kRows>(pair, false) * groups, right = at + row_of<kRows>(pair, true) * groups;
    const float32x4_t scale = of_pair(x.scales[left], x.scales[right]);
    const uint32x4_t none = vceqzq_f32(scale);
#pragma GCC unroll 8
    for (int j = 0; j < 2 * kQuarters; ++j) {
      float32x4_t& to = acc[2 * pair + (2 * from + j) / 4].v[(2 * from + j) % 4];
      int32x4_t dot = dots[pair][j];
      if constexpr (kFormat == WeightFormat::kInt4Even) {
        const int32x4_t totals = vcombine_s32(vdup_n_s32(x.totals[left]), vdup_n_s32(x.totals[right]));
        dot = vsubq_s32(dot, vshlq_n_s32(totals, 3));
      }
      float32x4_t sum = vfmaq_f32(to, vcvtq_f32_s32(dot), vmulq_f32(scales[j], scale));
      if constexpr (kTwice) sum = vfmaq_f32(sum, vcvtq_f32_s32(seconds[pair][j]), vmulq_f32(others[j], scale));
      if constexpr (has_minimum(kFormat)) sum = vfmaq_f32(sum, others[j], of_pair(x.sums[left], x.sums[right]));
      to = kSome ? vbslq_f32(none, to, sum) : sum;
    }
  }
}

// add_group for rows in pairs.
template <WeightFormat kFormat, int kRows, bool kSome>
EDGEWISE_INLINE void add_pairs(const GroupOfWeights& w, const RoundedRows& x, int64_t at, int64_t groups, Floats* acc) {
  constexpr int kPairs = (kRows + 1) / 2, kQuarters = kPairs > 2 ? 2 : 4;
  PairsOfCodes<kPairs> codes;
  pair_codes<kRows>(x.codes + at * kGroup, groups * kGroup, codes);
#pragma GCC unroll 2
  for (int from = 0; from < 4; from += kQuarters) {
    add_quarters<kFormat, kRows, kSome, kPairs, kQuarters>(w, codes, x, at, groups, from, acc);
  }
}

// Sums in pairs to sums by rows, in their places.
template <int kRows>
EDGEWISE_INLINE void part_pairs(Floats* acc) {
  for (int pair = 0; pair < (kRows + 1) / 2; ++pair) {
    const Floats a = acc[2 * pair], b = acc[2 * pair + 1];
    acc[2 * pair] = {{low_pair(a.v[0], a.v[1]), low_pair(a.v[2], a.v[3]), low_pair(b.v[0], b.v[1]), low_pair(b.v[2], b.v[3])}};
    acc[2 * pair + 1] = {
        {high_pair(a.v[0], a.v[1]), high_pair(a.v[2], a.v[3]), high_pair(b.v[0], b.v[1]), high_pair(b.v[2], b.v[3])}};
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
