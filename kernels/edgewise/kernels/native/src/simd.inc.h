// Sixteen floats or integers side by side, the width of a panel, in the widest registers of the instruction set.
//
// Every instruction set does the same operations in the same order, sums across the sixteen included, so the same source gives
// the same bits on all of them. Fused only where `fma` is written (the build forbids contraction). What a function does with NaN:
// arithmetic and exp keep it; max(a, b) and min(a, b) give b if either is NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define EDGEWISE_INLINE inline __attribute__((always_inline))

// Before a loop that must stay one: unrolled, g++ moves all sums behind all products and keeps the products in memory.
#if defined(__clang__)
#define EDGEWISE_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define EDGEWISE_ROLLED _Pragma("GCC unroll 1")
#endif

#if defined(EDGEWISE_ISA_AVX512)
#include "simd_avx512.inc.h"
#elif defined(EDGEWISE_ISA_AVX2)
#include "simd_avx2.inc.h"
#elif defined(EDGEWISE_ISA_NEON)
#include "simd_neon.inc.h"
#else
#include "simd_generic.inc.h"
#endif

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr int kLanes = 16;

EDGEWISE_INLINE Floats operator+(Floats a, Floats b) { return add(a, b); }
EDGEWISE_INLINE Floats operator-(Floats a, Floats b) { return sub(a, b); }
EDGEWISE_INLINE Floats operator*(Floats a, Floats b) { return mul(a, b); }
EDGEWISE_INLINE Floats operator/(Floats a, Floats b) { return div(a, b); }

// The first `count` of 16 lanes, zeros in the others; 0 <= count <= 16.
EDGEWISE_INLINE Floats load_part(const float* from, int count) {
  if (count == kLanes) return load(from);
  float part[kLanes] = {};
  std::memcpy(part, from, sizeof(float) * static_cast<size_t>(count));
  return load(part);
}

EDGEWISE_INLINE void store_part(float* to, Floats x, int count) {
  if (count == kLanes) return store(to, x);
  float part[kLanes];
  store(part, x);
  std::memcpy(to, part, sizeof(float) * static_cast<size_t>(count));
}

// e^x = 2^n * rest: n, and the rest by Cephes' polynomial (Moshier 1992).
EDGEWISE_INLINE Ints nearest_power(Floats x) { return round(x * splat(1.44269504f)); }
EDGEWISE_INLINE Floats rest_of_power(Floats x, Ints n) {
  const Floats whole = to_floats(n);
  Floats r = fma(whole, splat(-0.693359375f), x);
  r = fma(whole, splat(2.12194440e-4f), r);
  Floats y = splat(1.9875691500e-4f);
  y = fma(y, r, splat(1.3981999507e-3f));
  y = fma(y, r, splat(8.3334519073e-3f));
  y = fma(y, r, splat(4.1665795894e-2f));
  y = fma(y, r, splat(1.6666665459e-1f));
  y = fma(y, r, splat(5.0000001201e-1f));
  return fma(y, r * r, r) + splat(1.0f);
}

// e^x to within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN of NaN.
EDGEWISE_INLINE Floats exp(Floats x) {
  const Floats low = splat(-87.33654f), high = splat(88.72283f);
  const Floats bounded = max(low, min(high, x));
  const Ints n = nearest_power(bounded);
  // 2^n in two factors: n reaches 128, one more than an exponent holds
  const Ints half = shift_right<1>(n);
  const Floats scaled = rest_of_power(bounded, n) * power_of_two(half) * power_of_two(n - half);
  return select(less(x, low), splat(0.0f), select(less(high, x), splat(INFINITY), scaled));
}

EDGEWISE_INLINE Floats sigmoid(Floats x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// tanh by the exponential of -2|x|: no overflow, sign last.
EDGEWISE_INLINE Floats tanh(Floats x) {
  const Floats e = exp(abs(x) * splat(-2.0f));
  return copy_sign((splat(1.0f) - e) / (splat(1.0f) + e), x);
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
