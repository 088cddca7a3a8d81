// Products of attention with AVX-512 VNNI, whose instruction multiplies unsigned by signed bytes and adds four products;
// attention.inc.h says what they are for.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Rows of 16 words -> columns of 16 words.
EDGEWISE_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // r[i + c], lane l of 128 bits: word 4 l + c of rows i to i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44), low2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee), high2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
    t[c] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// [16 tokens, 16 dimensions] -> [16 dimensions, 16 tokens]
EDGEWISE_INLINE void transpose(const float* from, int64_t from_stride, float* to) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(from + i * from_stride);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kLanes, rows[i]);
}

// Codes of 16 dimensions of a query: their high bytes lie before all low bytes, code = 256 * high + low, both signed.
EDGEWISE_INLINE void store_query(uint8_t* query, int32_t padded, int32_t at, Ints codes) {
  const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(codes.v, _mm512_set1_epi32(128)), 8);
  const __m512i low = _mm512_sub_epi32(codes.v, _mm512_slli_epi32(high, 8));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(query + at), _mm512_cvtepi32_epi8(high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(query + padded + at), _mm512_cvtepi32_epi8(low));
}
// Keys are taken as code + 128, without sign; this puts it right. Codes of a NaN may be anything: without sign nothing overflows.
EDGEWISE_INLINE int32_t query_correction(int32_t total) {
  return static_cast<int32_t>(0u - 128u * static_cast<uint32_t>(total));
}

EDGEWISE_INLINE __m512i splat_word(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Dimensions [at, at + 4 * kWords) of a page's keys against all rows; the last of them makes scores of the sums.
template <int kWords>
EDGEWISE_INLINE void score_words(const int8_t* keys, int32_t head_dim, int32_t padded, int32_t at, Floats key_scales,
                                 const Queries& queries, int rows, const Ahead& ahead, float* scores) {
  const int32_t dims = head_dim - at < 4 * kWords ? head_dim - at : 4 * kWords;
  const __mmask64 mask = ~0ull >> (64 - dims);
  __m512i words[16];
#pragma GCC unroll 16
  for (int token = 0; token < 16; ++token) {
    const __m512i row = _mm512_maskz_loadu_epi8(mask, keys + static_cast<int64_t>(token) * head_dim + at);
    words[token] = _mm512_xor_si512(row, _mm512_set1_epi8(-128));
    fetch(ahead.keys + static_cast<int64_t>(token) * head_dim + at);
  }
  transpose(words);
  for (int token = 0; token < 16; ++token) fetch(ahead.values + static_cast<int64_t>(token) * head_dim + at);
  const bool starts = at == 0, ends = at + 4 * kWords >= padded;
  for (int row = 0; row < rows; ++row) {
    const uint8_t* query = queries.codes + static_cast<int64_t>(row) * 2 * padded + at;
    float* to = scores + static_cast<int64_t>(row) * kTileTokens;
    __m512i high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, low[2] = {high[0], high[0]};
    const __m512i before = starts ? _mm512_set1_epi32(queries.corrections[row]) : _mm512_loadu_si512(to);
#pragma GCC unroll 16
    for (int i = 0; i < kWords; ++i) {
      high[i % 2] = _mm512_dpbusd_epi32(high[i % 2], words[i], splat_word(query + 4 * i));
      low[i % 2] = _mm512_dpbusd_epi32(low[i % 2], words[i], splat_word(query + padded + 4 * i));
    }
    const __m512i highs = _mm512_slli_epi32(_mm512_add_epi32(high[0], high[1]), 8);
    const __m512i dots = _mm512_add_epi32(_mm512_add_epi32(highs, before), _mm512_add_epi32(low[0], low[1]));
    if (ends) {
      store(to, to_floats(Ints{dots}) * (key_scales * splat(queries.scales[row])));
    } else {
      _mm512_storeu_si512(to, dots);
    }
  }
}

void score_page(const int8_t* keys, int32_t head_dim, int32_t padded, const float* key_scales, const Queries& queries, int rows,
                uint8_t*, const Ahead& ahead, float* scores) {
  const Floats scales = load(key_scales);
  int32_t at = 0;
  for (; at + 64 <= padded; at += 64) score_words<16>(keys, head_dim, padded, at, scales, queries, rows, ahead, scores);
  if (at < padded) score_words<8>(keys, head_dim, padded, at, scales, queries, rows, ahead, scores);
}

// Codes of a row's weights of 16 keys: the high bytes of a tile, then its low bytes, both unsigned.
EDGEWISE_INLINE void store_weights(uint8_t* weights, int key, Ints codes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights + key), _mm512_cvtepi32_epi8(_mm512_srli_epi32(codes.v, 8)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights + kTileTokens + key), _mm512_cvtepi32_epi8(codes.v));
}

// A page's values -> words of four tokens' values of one dimension, by runs of 64 dimensions: [runs, 64 quads of tokens, 64].
// Within a run vector j holds dimensions 16 l + 4 j to 16 l + 4 j + 3 in its lane l of 128 bits.
void pack_values(const int8_t* values, int32_t head_dim, int page, int8_t* packed) {
  for (int32_t at = 0; at < head_dim; at += 64, packed += 64 * kTileTokens) {
    const __mmask64 mask = ~0ull >> (head_dim - at < 64 ? 64 - (head_dim - at) : 0);
    for (int quad = 0; quad < kPageTokens / 4; ++quad) {
      const int8_t* from = values + static_cast<int64_t>(4 * quad) * head_dim + at;
      __m512i r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = _mm512_maskz_loadu_epi8(mask, from + static_cast<int64_t>(i) * head_dim);
      const __m512i ab = _mm512_unpacklo_epi8(r[0], r[1]), ab2 = _mm512_unpackhi_epi8(r[0], r[1]);
      const __m512i cd = _mm512_unpacklo_epi8(r[2], r[3]), cd2 = _mm512_unpackhi_epi8(r[2], r[3]);
      int8_t* to = packed + static_cast<int64_t>(page * (kPageTokens / 4) + quad) * 256;
      _mm512_storeu_si512(to, _mm512_unpacklo_epi16(ab, cd));
      _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi16(ab, cd));
      _mm512_storeu_si512(to + 128, _mm512_unpacklo_epi16(ab2, cd2));
      _mm512_storeu_si512(to + 192, _mm512_unpackhi_epi16(ab2, cd2));
    }
  }
}

constexpr int32_t kRun = 64;  // dimensions of a run of packed values

// Up to kRun dimensions of `kRows` rows. With 256 keys no sum reaches 2^31.
template <int kRows>
EDGEWISE_INLINE void mix_run(const int8_t* packed, int32_t head_dim, int32_t dims, const uint8_t* weights, const float* scales,
                             int first, int last, float* out) {
  __m512i sums[kRows][4];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_setzero_si512();
  }
  for (int part = 0; part < 2; ++part) {
    const uint8_t* codes = weights + part * kTileTokens;
    for (int key = first; key < last; key += 4) {
      const int8_t* from = packed + static_cast<int64_t>(key) * 64;
      __m512i v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) v[j] = _mm512_loadu_si512(from + 64 * j);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i weight = splat_word(codes + r * 2 * kTileTokens + key);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], weight, v[j]);
      }
    }
    if (part == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_slli_epi32(sums[r][j], 8);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512i a = _mm512_shuffle_i32x4(sums[r][0], sums[r][1], 0x44), b = _mm512_shuffle_i32x4(sums[r][2], sums[r][3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(sums[r][0], sums[r][1], 0xee), d = _mm512_shuffle_i32x4(sums[r][2], sums[r][3], 0xee);
    const __m512i ordered[4] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd),
                                _mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int count = dims - 16 * j < 0 ? 0 : dims - 16 * j < kLanes ? dims - 16 * j : kLanes;
      store_part(out + static_cast<int64_t>(r) * head_dim + 16 * j, to_floats(Ints{ordered[j]}) * splat(scales[r]), count);
    }
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
