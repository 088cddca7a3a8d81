// Products of attention with NEON; attention.inc.h says what they are for.
//
// Queries and weights are 16-bit numbers, 256 * high + low: two products of bytes each. Keys of a page and values of a tile are
// turned into panels of 16 rows, tokens of a page or dimensions of a run; how bytes lie in numbers and panels, and what multiplies
// them, is the instruction set's own.
#pragma once

#if defined(EDGEWISE_ISA_I8MM)
#include "attention_i8mm.inc.h"
#else
#include "attention_dotprod.inc.h"
#endif

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// [16 tokens, 16 dimensions] -> [16 dimensions, 16 tokens]
EDGEWISE_INLINE void transpose(const float* from, int64_t from_stride, float* to) {
  for (int token = 0; token < 16; token += 4) {
    for (int at = 0; at < 16; at += 4) {
      const float* corner = from + token * from_stride + at;
      const float32x4_t a = vld1q_f32(corner), b = vld1q_f32(corner + from_stride);
      const float32x4_t c = vld1q_f32(corner + 2 * from_stride), d = vld1q_f32(corner + 3 * from_stride);
      const float32x4_t ac = vzip1q_f32(a, c), ac2 = vzip2q_f32(a, c), bd = vzip1q_f32(b, d), bd2 = vzip2q_f32(b, d);
      float* out = to + at * kLanes + token;
      vst1q_f32(out, vzip1q_f32(ac, bd));
      vst1q_f32(out + kLanes, vzip2q_f32(ac, bd));
      vst1q_f32(out + 2 * kLanes, vzip1q_f32(ac2, bd2));
      vst1q_f32(out + 3 * kLanes, vzip2q_f32(ac2, bd2));
    }
  }
}

// The low bytes of 16 numbers.
EDGEWISE_INLINE uint8x16_t low_bytes(Ints codes) {
  const uint16x8_t a = vuzp1q_u16(vreinterpretq_u16_s32(codes.v[0]), vreinterpretq_u16_s32(codes.v[1]));
  const uint16x8_t b = vuzp1q_u16(vreinterpretq_u16_s32(codes.v[2]), vreinterpretq_u16_s32(codes.v[3]));
  return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

// Codes of 16 dimensions of a query, |code| <= kQueryLevels: both bytes with sign.
EDGEWISE_INLINE void store_query(uint8_t* query, int32_t padded, int32_t at, Ints codes) {
  const Ints high = shift_right<8>(codes + splat_int(128));
  store_numbers(query, padded, at, low_bytes(high), low_bytes(codes - shift_left<8>(high)));
}
EDGEWISE_INLINE int32_t query_correction(int32_t) { return 0; }

// Up to 16 bytes, zeros after them.
EDGEWISE_INLINE int8x16_t load_bytes(const int8_t* from, int32_t count) {
  if (count >= 16) return vld1q_s8(from);
  int8_t part[16] = {};
  std::memcpy(part, from, static_cast<size_t>(count));
  return vld1q_s8(part);
}

// A page's keys -> panel of its tokens, columns = dimensions in whole sixteens.
EDGEWISE_INLINE void turn_keys(const int8_t* keys, int32_t head_dim, uint8_t* panel, const int8_t* ahead) {
  for (int32_t at = 0; at < head_dim; at += 16, panel += 256) {
    int8x16_t tokens[kPageTokens];
#pragma GCC unroll 16
    for (int i = 0; i < kPageTokens; ++i) {
      const int64_t from = static_cast<int64_t>(i) * head_dim + at;
      tokens[i] = load_bytes(keys + from, head_dim - at);
      if (at % 64 == 0) fetch(ahead + from);
    }
    store_panel(panel, tokens);
  }
}

void score_page(const int8_t* keys, int32_t head_dim, int32_t padded, const float* key_scales, const Queries& queries, int rows,
                uint8_t* panel, const Ahead& ahead, float* scores) {
  turn_keys(keys, head_dim, panel, ahead.keys);
  const int32_t page_bytes = kPageTokens * head_dim, columns = (head_dim + 15) / 16 * 16;
  for (int32_t at = 0; at < page_bytes; at += 64) fetch(ahead.values + at);
  const Floats key_scale = load(key_scales);
  in_fours(rows, [&](auto some, int row) __attribute__((always_inline)) {
    Ints dots[some.kCount];
    multiply_queries<some.kCount>(panel, columns, queries.codes + static_cast<int64_t>(row) * 2 * padded, padded, dots);
    for (int r = 0; r < some.kCount; ++r) {
      const Floats scale = key_scale * splat(queries.scales[row + r]);
      store(scores + static_cast<int64_t>(row + r) * kTileTokens, to_floats(dots[r]) * scale);
    }
  });
}

// Codes of a row's weights of 16 keys, 0 <= code <= kWeightLevels: both bytes without sign.
EDGEWISE_INLINE void store_weights(uint8_t* weights, int key, Ints codes) {
  store_numbers(weights, kTileTokens, key, low_bytes(shift_right<8>(codes)), low_bytes(codes));
}

constexpr int32_t kRun = 16;  // dimensions of a run of packed values

// A page's values -> by runs of dimensions, panels whose columns are the tokens of a tile.
void pack_values(const int8_t* values, int32_t head_dim, int page, int8_t* packed) {
  uint8_t* panel = reinterpret_cast<uint8_t*>(packed) + page * kPageTokens * kRun;
  for (int32_t at = 0; at < head_dim; at += kRun, panel += kRun * kTileTokens) {
    int8x16_t tokens[kPageTokens];
#pragma GCC unroll 16
    for (int i = 0; i < kPageTokens; ++i) tokens[i] = load_bytes(values + static_cast<int64_t>(i) * head_dim + at, head_dim - at);
    store_turned_panel(panel, tokens);
  }
}

// Up to kRun dimensions of `kRows` rows. With 256 keys no sum reaches 2^31.
template <int kRows>
EDGEWISE_INLINE void mix_run(const int8_t* packed, int32_t head_dim, int count, const uint8_t* weights, const float* scales,
                             int first, int last, float* out) {
  Ints sums[kRows];
  const uint8_t* panel = reinterpret_cast<const uint8_t*>(packed) + first * kRun;
  multiply_weights<kRows>(panel, last - first, numbers_at(weights, first), kTileTokens, sums);
  for (int r = 0; r < kRows; ++r) {
    store_part(out + static_cast<int64_t>(r) * head_dim, to_floats(sums[r]) * splat(scales[r]), count);
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
