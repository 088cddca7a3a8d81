// Integer products of a group with AVX-512 VNNI: a register holds four columns of the 16 rows of a panel.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr int kTileRows = 4;  // 6 to 12 rows are no faster on Zen 4
constexpr int kStreamRows = 4;
constexpr int64_t kPrefetchBytes = 8192;

// To the second level: the first has too few slots for outstanding lines to keep memory busy.
EDGEWISE_INLINE void prefetch(const uint8_t* at, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
}

EDGEWISE_INLINE __m512i four_columns(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof(four));
  return _mm512_set1_epi32(four);
}

// vpdpbusd takes one unsigned operand: weights are raised by 128, and 128 times the sum of the activations' codes is taken off.
template <int kRows, int kColumns>
EDGEWISE_INLINE void dot_int8(const uint8_t* w, const int8_t* x, int64_t stride, const int32_t* totals, int64_t groups, Ints* dots) {
  const __m512i raise = _mm512_set1_epi8(-128);
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0) - shift_left<7>(splat_int(totals[i * groups]));
  for (int k = 0; k < kColumns / 4; ++k) {
    const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(w + 64 * k), raise);
    for (int i = 0; i < kRows; ++i) dots[i].v = _mm512_dpbusd_epi32(dots[i].v, weights, four_columns(x + i * stride + 4 * k));
  }
}

template <int kRows>
EDGEWISE_INLINE void dot_int4(const uint8_t* w, const int8_t* x, int64_t stride, Ints* dots) {
  const __m512i low_half = _mm512_set1_epi8(15);
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  for (int k = 0; k < kGroup / 8; ++k) {
    const __m512i both = _mm512_loadu_si512(w + 64 * k);
    const __m512i low = _mm512_and_si512(both, low_half), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
    for (int i = 0; i < kRows; ++i) {
      const int8_t* at = x + i * stride + 8 * k;
      dots[i].v = _mm512_dpbusd_epi32(dots[i].v, low, four_columns(at));
      dots[i].v = _mm512_dpbusd_epi32(dots[i].v, high, four_columns(at + 4));
    }
  }
}

// Words (column 0, column 1) of 16 rows to two columns.
EDGEWISE_INLINE void load_bfloat16_pairs(const uint16_t* w, Floats& even, Floats& odd) {
  const __m512i both = _mm512_loadu_si512(w);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
