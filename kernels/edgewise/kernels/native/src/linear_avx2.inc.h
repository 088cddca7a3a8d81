// Integer products of a group with AVX2: two registers hold four columns of the 16 rows of a panel.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr int kTileRows = 4;
constexpr int kStreamRows = 4;
constexpr int64_t kPrefetchBytes = 8192;

// To the second level: the first has too few slots for outstanding lines to keep memory busy.
EDGEWISE_INLINE void prefetch(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
}

EDGEWISE_INLINE __m256i four_columns(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof(four));
  return _mm256_set1_epi32(four);
}

EDGEWISE_INLINE __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// maddubs takes one unsigned operand: |w| times x with w's sign. Codes of activations are at least -127, so nothing saturates.
template <int kRows, int kColumns>
EDGEWISE_INLINE void dot_int8(const uint8_t* w, const int8_t* x, int64_t stride, const int32_t*, int64_t, Ints* dots) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  EDGEWISE_ROLLED for (int k = 0; k < kColumns / 4; ++k) {
    const __m256i a = load_bytes(w + 64 * k), b = load_bytes(w + 64 * k + 32);
    const __m256i size_a = _mm256_abs_epi8(a), size_b = _mm256_abs_epi8(b);
    for (int i = 0; i < kRows; ++i) {
      const __m256i four = four_columns(x + i * stride + 4 * k);
      const __m256i two_a = _mm256_maddubs_epi16(size_a, _mm256_sign_epi8(four, a));
      const __m256i two_b = _mm256_maddubs_epi16(size_b, _mm256_sign_epi8(four, b));
      dots[i].a = _mm256_add_epi32(dots[i].a, _mm256_madd_epi16(two_a, ones));
      dots[i].b = _mm256_add_epi32(dots[i].b, _mm256_madd_epi16(two_b, ones));
    }
  }
}

// 16-bit sums hold a group: 16 products of at most 15 * 127.
template <int kRows>
EDGEWISE_INLINE void dot_int4(const uint8_t* w, const int8_t* x, int64_t stride, Ints* dots) {
  const __m256i ones = _mm256_set1_epi16(1), low_half = _mm256_set1_epi8(15);
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  EDGEWISE_ROLLED for (int k = 0; k < kGroup / 8; ++k) {
    const __m256i a = load_bytes(w + 64 * k), b = load_bytes(w + 64 * k + 32);
    const __m256i low_a = _mm256_and_si256(a, low_half), high_a = _mm256_and_si256(_mm256_srli_epi16(a, 4), low_half);
    const __m256i low_b = _mm256_and_si256(b, low_half), high_b = _mm256_and_si256(_mm256_srli_epi16(b, 4), low_half);
    for (int i = 0; i < kRows; ++i) {
      const __m256i first = four_columns(x + i * stride + 8 * k), second = four_columns(x + i * stride + 8 * k + 4);
      const __m256i sum_a = _mm256_add_epi16(_mm256_maddubs_epi16(low_a, first), _mm256_maddubs_epi16(high_a, second));
      const __m256i sum_b = _mm256_add_epi16(_mm256_maddubs_epi16(low_b, first), _mm256_maddubs_epi16(high_b, second));
      dots[i].a = _mm256_add_epi16(dots[i].a, sum_a);
      dots[i].b = _mm256_add_epi16(dots[i].b, sum_b);
    }
  }
  for (int i = 0; i < kRows; ++i) dots[i] = {_mm256_madd_epi16(dots[i].a, ones), _mm256_madd_epi16(dots[i].b, ones)};
}

// Words (column 0, column 1) of 16 rows to two columns.
EDGEWISE_INLINE void load_bfloat16_pairs(const uint16_t* w, Floats& even, Floats& odd) {
  const __m256i a = load_bytes(reinterpret_cast<const uint8_t*>(w)), b = load_bytes(reinterpret_cast<const uint8_t*>(w + 16));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
