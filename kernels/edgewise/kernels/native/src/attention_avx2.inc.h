// Products of attention with AVX2: pairs of 16-bit numbers, since the multiplication of bytes saturates; attention.inc.h says
// what they are for.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Rows of 8 words -> columns of 8 words.
EDGEWISE_INLINE void transpose(__m256i (&r)[8]) {
  __m256i t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // r[i + c], lane l of 128 bits: word 4 l + c of rows i to i + 3
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2x128_si256(r[c], r[4 + c], 0x20);
    t[4 + c] = _mm256_permute2x128_si256(r[c], r[4 + c], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

// [16 tokens, 16 dimensions] -> [16 dimensions, 16 tokens]
EDGEWISE_INLINE void transpose(const float* from, int64_t from_stride, float* to) {
  for (int token = 0; token < 16; token += 8) {
    for (int at = 0; at < 16; at += 8) {
      __m256i rows[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        rows[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + (token + i) * from_stride + at));
      }
      transpose(rows);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (at + i) * kLanes + token), rows[i]);
    }
  }
}

// Codes of 16 dimensions of a query, of each four the even ones before the odd ones, as score_page has keys.
EDGEWISE_INLINE void store_query(uint8_t* query, int32_t, int32_t at, Ints codes) {
  const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes.a, codes.b), 0xd8);
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12,
                                         13, 10, 11, 14, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(query + 2 * at), _mm256_shuffle_epi8(all, order));
}
EDGEWISE_INLINE int32_t query_correction(int32_t) { return 0; }

EDGEWISE_INLINE __m256i splat_word(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Sums are made here: g++ would move all of them behind all products, and keep those in memory.
EDGEWISE_INLINE void keep_here(__m256i (&sums)[2]) { __asm__("" : "+x"(sums[0]), "+x"(sums[1])); }

EDGEWISE_INLINE __m256i load_bytes(const int8_t* from, int32_t count) {
  if (count >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  int8_t part[32] = {};
  std::memcpy(part, from, static_cast<size_t>(count));
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(part));
}

// A page's keys -> [padded / 4, even and odd dimensions, 16 tokens, 2] 16-bit numbers.
EDGEWISE_INLINE void widen_keys(const int8_t* keys, int32_t head_dim, uint8_t* wide, const int8_t* ahead) {
  for (int32_t at = 0; at < head_dim; at += 32) {
    for (int half = 0; half < 2; ++half) {
      __m256i words[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const int64_t from = static_cast<int64_t>(8 * half + i) * head_dim + at;
        words[i] = load_bytes(keys + from, head_dim - at);
        if (at % 64 == 0) fetch(ahead + from);
      }
      transpose(words);
      __m256i* to = reinterpret_cast<__m256i*>(wide) + at + half;  // 4 vectors of 8 tokens for 4 dimensions
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        _mm256_storeu_si256(to + 4 * i, _mm256_srai_epi16(_mm256_slli_epi16(words[i], 8), 8));
        _mm256_storeu_si256(to + 4 * i + 2, _mm256_srai_epi16(words[i], 8));
      }
    }
  }
}

template <int kRows>
EDGEWISE_INLINE void score_rows(const uint8_t* wide, int32_t padded, Floats key_scales, const Queries& queries, int row,
                                float* scores) {
  __m256i sums[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  const uint8_t* query = queries.codes + static_cast<int64_t>(row) * 2 * padded;
  const __m256i* pairs = reinterpret_cast<const __m256i*>(wide);
  for (int32_t pair = 0; pair < padded / 2; ++pair) {
    const __m256i a = _mm256_loadu_si256(pairs + 2 * pair), b = _mm256_loadu_si256(pairs + 2 * pair + 1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i q = splat_word(query + static_cast<int64_t>(r) * 2 * padded + 4 * pair);
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(a, q));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(b, q));
      keep_here(sums[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Floats dots = to_floats(Ints{sums[r][0], sums[r][1]});
    store(scores + static_cast<int64_t>(row + r) * kTileTokens, dots * (key_scales * splat(queries.scales[row + r])));
  }
}

void score_page(const int8_t* keys, int32_t head_dim, int32_t padded, const float* key_scales, const Queries& queries, int rows,
                uint8_t* wide, const Ahead& ahead, float* scores) {
  widen_keys(keys, head_dim, wide, ahead.keys);
  const int32_t page_bytes = kPageTokens * head_dim;
  for (int32_t at = 0; at < page_bytes; at += 64) fetch(ahead.values + at);
  const Floats key_scale = load(key_scales);
  in_fours(rows, [&](auto some, int row) __attribute__((always_inline)) {
    score_rows<some.kCount>(wide, padded, key_scale, queries, row, scores);
  });
}

// Codes of a row's weights of 16 keys, 0 <= code <= kWeightLevels.
EDGEWISE_INLINE void store_weights(uint8_t* weights, int key, Ints codes) {
  const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes.a, codes.b), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + 2 * key), all);
}

// A page's values -> [runs of 16 dimensions, 128 pairs of tokens, 16, 2].
void pack_values(const int8_t* values, int32_t head_dim, int page, int8_t* packed) {
  for (int32_t at = 0; at < head_dim; at += 16, packed += 16 * kTileTokens) {
    for (int pair = 0; pair < kPageTokens / 2; ++pair) {
      const int8_t* from = values + static_cast<int64_t>(2 * pair) * head_dim + at;
      int8_t rows[2][16] = {};
      const size_t count = static_cast<size_t>(head_dim - at < 16 ? head_dim - at : 16);
      if (count == 16) {
        std::memcpy(rows[0], from, 16);
        std::memcpy(rows[1], from + head_dim, 16);
      } else {
        std::memcpy(rows[0], from, count);
        std::memcpy(rows[1], from + head_dim, count);
      }
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[0]));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[1]));
      __m128i* to = reinterpret_cast<__m128i*>(packed + static_cast<int64_t>(page * kPageTokens / 2 + pair) * 32);
      _mm_storeu_si128(to, _mm_unpacklo_epi8(a, b));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(a, b));
    }
  }
}

constexpr int32_t kRun = 16;  // dimensions of a run of packed values

// Up to kRun dimensions of `kRows` rows. With 256 keys no sum reaches 2^31.
template <int kRows>
EDGEWISE_INLINE void mix_run(const int8_t* packed, int32_t head_dim, int count, const uint8_t* weights, const float* scales,
                             int first, int last, float* out) {
  __m256i sums[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  for (int key = first; key < last; key += 2) {
    const __m128i* from = reinterpret_cast<const __m128i*>(packed + static_cast<int64_t>(key) * 16);
    const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128(from)), b = _mm256_cvtepi8_epi16(_mm_loadu_si128(from + 1));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i weight = splat_word(weights + 2 * (r * kTileTokens + key));
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(a, weight));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(b, weight));
      keep_here(sums[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Floats values = to_floats(Ints{sums[r][0], sums[r][1]}) * splat(scales[r]);
    store_part(out + static_cast<int64_t>(r) * head_dim, values, count);
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
