// simd.inc.h in plain C++: what the others must equal.
#pragma once

#include "float16.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

struct Floats {
  float v[16];
};
struct Ints {
  int32_t v[16];
};
struct Mask {
  bool v[16];
};

template <typename To, typename Each>
EDGEWISE_INLINE To lanes(Each&& each) {
  To to;
  for (int i = 0; i < 16; ++i) to.v[i] = each(i);
  return to;
}

EDGEWISE_INLINE Floats splat(float x) {
  return lanes<Floats>([&](int) { return x; });
}
EDGEWISE_INLINE Floats load(const float* p) {
  return lanes<Floats>([&](int i) { return p[i]; });
}
EDGEWISE_INLINE void store(float* p, Floats x) { std::memcpy(p, x.v, sizeof(x.v)); }
EDGEWISE_INLINE Floats add(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
EDGEWISE_INLINE Floats sub(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
EDGEWISE_INLINE Floats mul(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
EDGEWISE_INLINE Floats div(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] / b.v[i]; });
}
EDGEWISE_INLINE Floats sqrt(const Floats& a) {
  return lanes<Floats>([&](int i) { return ::sqrtf(a.v[i]); });
}
EDGEWISE_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return lanes<Floats>([&](int i) { return ::fmaf(a.v[i], b.v[i], c.v[i]); });
}
EDGEWISE_INLINE Floats max(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
EDGEWISE_INLINE Floats min(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
EDGEWISE_INLINE Floats abs(const Floats& a) {
  return lanes<Floats>([&](int i) { return ::fabsf(a.v[i]); });
}
EDGEWISE_INLINE Floats copy_sign(const Floats& magnitude, const Floats& sign) {
  return lanes<Floats>([&](int i) { return ::copysignf(magnitude.v[i], sign.v[i]); });
}
EDGEWISE_INLINE Mask less(const Floats& a, const Floats& b) {
  return lanes<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
EDGEWISE_INLINE Floats select(const Mask& m, const Floats& yes, const Floats& no) {
  return lanes<Floats>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
// lanes below `count`
EDGEWISE_INLINE Mask first_lanes(int count) {
  return lanes<Mask>([&](int i) { return i < count; });
}

EDGEWISE_INLINE Ints splat_int(int32_t x) {
  return lanes<Ints>([&](int) { return x; });
}
// Sums wrap, as those of registers do: what a NaN was rounded to may be the least int, and nobody reads its sums.
EDGEWISE_INLINE int32_t wrapping_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
EDGEWISE_INLINE Ints operator+(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return wrapping_sum(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Ints operator-(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])); });
}
EDGEWISE_INLINE Ints max_int(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int kBits>
EDGEWISE_INLINE Ints shift_left(const Ints& a) {
  return lanes<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBits); });
}
template <int kBits>
EDGEWISE_INLINE Ints shift_right(const Ints& a) {  // keeps the sign
  return lanes<Ints>([&](int i) { return a.v[i] >> kBits; });
}
EDGEWISE_INLINE Ints round(const Floats& a) {  // half to even; NaN and what no int holds give the least int, as on x86
  return lanes<Ints>([&](int i) {
    return a.v[i] >= -2147483648.0f && a.v[i] < 2147483648.0f ? static_cast<int32_t>(::rintf(a.v[i])) : INT32_MIN;
  });
}
EDGEWISE_INLINE Floats to_floats(const Ints& a) {
  return lanes<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
EDGEWISE_INLINE Ints bits(const Floats& a) {
  Ints to;
  std::memcpy(to.v, a.v, sizeof(to.v));
  return to;
}
EDGEWISE_INLINE Floats power_of_two(const Ints& n) {  // -126 <= n <= 127
  Floats to;
  const Ints exponent = lanes<Ints>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(n.v[i] + 127) << 23); });
  std::memcpy(to.v, exponent.v, sizeof(to.v));
  return to;
}

// Lanes i and i ^ kApart change places.
template <int kApart>
EDGEWISE_INLINE Floats exchange(const Floats& a) {
  return lanes<Floats>([&](int i) { return a.v[i ^ kApart]; });
}

// Sums across lanes halve the width: 16 to 8, 4, 2, 1.
template <typename Value, typename Two>
EDGEWISE_INLINE Value halved(const Value (&lanes)[16], Two&& two) {
  Value part[16];
  std::memcpy(part, lanes, sizeof(part));
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] = two(part[i], part[i + width]);
  }
  return part[0];
}
EDGEWISE_INLINE float sum(const Floats& a) {
  return halved(a.v, [](float x, float y) { return x + y; });
}
EDGEWISE_INLINE float maximum(const Floats& a) {
  return halved(a.v, [](float x, float y) { return x > y ? x : y; });
}
EDGEWISE_INLINE int32_t sum_ints(const Ints& a) {
  return halved(a.v, wrapping_sum);
}
EDGEWISE_INLINE int32_t maximum_int(const Ints& a) {
  return halved(a.v, [](int32_t x, int32_t y) { return x > y ? x : y; });
}

EDGEWISE_INLINE Floats load_float16(const uint16_t* p) {
  return lanes<Floats>([&](int i) { return from_float16(p[i]); });
}
EDGEWISE_INLINE Floats load_bfloat16(const uint16_t* p) {
  return lanes<Floats>([&](int i) { return from_bfloat16(p[i]); });
}
EDGEWISE_INLINE Floats load_int8(const int8_t* p) {
  return lanes<Floats>([&](int i) { return static_cast<float>(p[i]); });
}
EDGEWISE_INLINE void store_int8(int8_t* p, const Ints& a) {  // saturates
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
