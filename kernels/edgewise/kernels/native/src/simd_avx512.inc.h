// simd.inc.h for AVX-512.
#pragma once

#include <immintrin.h>

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

EDGEWISE_INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
EDGEWISE_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
EDGEWISE_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
EDGEWISE_INLINE Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats sqrt(Floats a) { return {_mm512_sqrt_ps(a.v)}; }
EDGEWISE_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EDGEWISE_INLINE Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
EDGEWISE_INLINE Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
EDGEWISE_INLINE Floats copy_sign(Floats magnitude, Floats sign) {
  return {_mm512_or_ps(_mm512_abs_ps(magnitude.v), _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
EDGEWISE_INLINE Mask less(Floats a, Floats b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
EDGEWISE_INLINE Floats select(Mask m, Floats yes, Floats no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
// lanes below `count`
EDGEWISE_INLINE Mask first_lanes(int count) { return {static_cast<__mmask16>((1u << count) - 1u)}; }

EDGEWISE_INLINE Ints splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
EDGEWISE_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
EDGEWISE_INLINE Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
EDGEWISE_INLINE Ints max_int(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int kBits>
EDGEWISE_INLINE Ints shift_left(Ints a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
EDGEWISE_INLINE Ints shift_right(Ints a) {  // keeps the sign
  return {_mm512_srai_epi32(a.v, kBits)};
}
EDGEWISE_INLINE Ints round(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }  // half to even
EDGEWISE_INLINE Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
EDGEWISE_INLINE Ints bits(Floats a) { return {_mm512_castps_si512(a.v)}; }
EDGEWISE_INLINE Floats power_of_two(Ints n) {  // -126 <= n <= 127
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

// Lanes i and i ^ kApart change places.
template <int kApart>
EDGEWISE_INLINE Floats exchange(Floats a) {
  if constexpr (kApart == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  if constexpr (kApart == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  if constexpr (kApart == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  if constexpr (kApart == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}

// Sums across lanes halve the width: 16 to 8, 4, 2, 1.
EDGEWISE_INLINE float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
EDGEWISE_INLINE float maximum(Floats a) { return _mm512_reduce_max_ps(a.v); }
EDGEWISE_INLINE int32_t sum_ints(Ints a) { return _mm512_reduce_add_epi32(a.v); }
EDGEWISE_INLINE int32_t maximum_int(Ints a) { return _mm512_reduce_max_epi32(a.v); }

EDGEWISE_INLINE Floats load_float16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
EDGEWISE_INLINE Floats load_bfloat16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
EDGEWISE_INLINE Floats load_int8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
EDGEWISE_INLINE void store_int8(int8_t* p, Ints a) {  // saturates
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
