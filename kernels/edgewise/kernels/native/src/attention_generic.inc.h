// Products of attention in plain C++, one page of 16 tokens at a time; attention.inc.h says what they are for.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

EDGEWISE_INLINE Ints from_lanes(const int32_t (&each)[kLanes]) {
  Ints all;
  std::memcpy(&all, each, sizeof(each));
  return all;
}

// [16 tokens, 16 dimensions] -> [16 dimensions, 16 tokens]
EDGEWISE_INLINE void transpose(const float* from, int64_t from_stride, float* to) {
  for (int token = 0; token < kLanes; ++token) {
    for (int i = 0; i < kLanes; ++i) to[i * kLanes + token] = from[token * from_stride + i];
  }
}

// Codes of 16 dimensions of a query, |code| <= kQueryLevels.
EDGEWISE_INLINE void store_query(uint8_t* query, int32_t, int32_t at, Ints codes) {
  int32_t each[kLanes];
  std::memcpy(each, &codes, sizeof(each));
  for (int i = 0; i < kLanes; ++i) reinterpret_cast<int16_t*>(query)[at + i] = static_cast<int16_t>(each[i]);
}
EDGEWISE_INLINE int32_t query_correction(int32_t) { return 0; }

void score_page(const int8_t* keys, int32_t head_dim, int32_t padded, const float* key_scales, const Queries& queries, int rows,
                uint8_t*, const Ahead&, float* scores) {
  const Floats scales = load(key_scales);
  for (int row = 0; row < rows; ++row) {
    const int16_t* query = reinterpret_cast<const int16_t*>(queries.codes + static_cast<int64_t>(row) * 2 * padded);
    int32_t dots[kLanes];
    for (int token = 0; token < kLanes; ++token) {
      const int8_t* key = keys + static_cast<int64_t>(token) * head_dim;
      int32_t dot = 0;
      for (int32_t i = 0; i < head_dim; ++i) dot += query[i] * key[i];
      dots[token] = dot;
    }
    store(scores + static_cast<int64_t>(row) * kTileTokens, to_floats(from_lanes(dots)) * (scales * splat(queries.scales[row])));
  }
}

// Codes of a row's weights of 16 keys, 0 <= code <= kWeightLevels.
EDGEWISE_INLINE void store_weights(uint8_t* weights, int key, Ints codes) {
  int32_t each[kLanes];
  std::memcpy(each, &codes, sizeof(each));
  for (int i = 0; i < kLanes; ++i) reinterpret_cast<int16_t*>(weights)[key + i] = static_cast<int16_t>(each[i]);
}

void pack_values(const int8_t* values, int32_t head_dim, int page, int8_t* packed) {
  const size_t size = static_cast<size_t>(kPageTokens) * static_cast<size_t>(head_dim);
  std::memcpy(packed + static_cast<size_t>(page) * size, values, size);
}

void mix_values(const int8_t* packed, int32_t head_dim, const uint8_t* weights, const float* scales, int rows, int first,
                int last, float* out) {
  for (int row = 0; row < rows; ++row) {
    const int16_t* codes = reinterpret_cast<const int16_t*>(weights + static_cast<int64_t>(row) * 2 * kTileTokens);
    for (int32_t at = 0; at < head_dim; at += kLanes) {
      const int count = head_dim - at < kLanes ? head_dim - at : kLanes;
      int32_t sums[kLanes] = {};
      for (int key = first; key < last; ++key) {
        const int8_t* value = packed + static_cast<int64_t>(key) * head_dim + at;
        for (int i = 0; i < count; ++i) sums[i] += codes[key] * value[i];
      }
      store_part(out + static_cast<int64_t>(row) * head_dim + at, to_floats(from_lanes(sums)) * splat(scales[row]), count);
    }
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
