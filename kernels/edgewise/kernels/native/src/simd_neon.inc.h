// simd.inc.h for 64-bit ARM: four registers of four.
#pragma once

#include <arm_neon.h>

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

struct Floats {
  float32x4_t v[4];
};
struct Ints {
  int32x4_t v[4];
};
struct Mask {
  uint32x4_t v[4];
};

template <typename To, typename Each>
EDGEWISE_INLINE To quarters(Each&& each) {
  return {{each(0), each(1), each(2), each(3)}};
}

EDGEWISE_INLINE Floats splat(float x) {
  return quarters<Floats>([&](int) { return vdupq_n_f32(x); });
}
EDGEWISE_INLINE Floats load(const float* p) {
  return quarters<Floats>([&](int i) { return vld1q_f32(p + 4 * i); });
}
EDGEWISE_INLINE void store(float* p, Floats x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
EDGEWISE_INLINE Floats add(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats sub(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats mul(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats div(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats sqrt(Floats a) {
  return quarters<Floats>([&](int i) { return vsqrtq_f32(a.v[i]); });
}
EDGEWISE_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return quarters<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// By comparison, so that NaN and zeros go the way of x86.
EDGEWISE_INLINE Floats max(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats min(Floats a, Floats b) {
  return quarters<Floats>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats abs(Floats a) {
  return quarters<Floats>([&](int i) { return vabsq_f32(a.v[i]); });
}
EDGEWISE_INLINE Floats copy_sign(Floats magnitude, Floats sign) {
  const uint32x4_t bit = vdupq_n_u32(0x80000000u);
  return quarters<Floats>([&](int i) { return vbslq_f32(bit, sign.v[i], magnitude.v[i]); });
}
EDGEWISE_INLINE Mask less(Floats a, Floats b) {
  return quarters<Mask>([&](int i) { return vcltq_f32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Floats select(Mask m, Floats yes, Floats no) {
  return quarters<Floats>([&](int i) { return vbslq_f32(m.v[i], yes.v[i], no.v[i]); });
}
// lanes below `count`
EDGEWISE_INLINE Mask first_lanes(int count) {
  const int32x4_t lane = {0, 1, 2, 3};
  return quarters<Mask>([&](int i) { return vcltq_s32(lane, vdupq_n_s32(count - 4 * i)); });
}

EDGEWISE_INLINE Ints splat_int(int32_t x) {
  return quarters<Ints>([&](int) { return vdupq_n_s32(x); });
}
EDGEWISE_INLINE Ints operator+(Ints a, Ints b) {
  return quarters<Ints>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Ints operator-(Ints a, Ints b) {
  return quarters<Ints>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
EDGEWISE_INLINE Ints max_int(Ints a, Ints b) {
  return quarters<Ints>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
template <int kBits>
EDGEWISE_INLINE Ints shift_left(Ints a) {
  return quarters<Ints>([&](int i) { return vshlq_n_s32(a.v[i], kBits); });
}
template <int kBits>
EDGEWISE_INLINE Ints shift_right(Ints a) {  // keeps the sign
  return quarters<Ints>([&](int i) { return vshrq_n_s32(a.v[i], kBits); });
}
EDGEWISE_INLINE Ints round(Floats a) {  // half to even
  return quarters<Ints>([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}
EDGEWISE_INLINE Floats to_floats(Ints a) {
  return quarters<Floats>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
EDGEWISE_INLINE Ints bits(Floats a) {
  return quarters<Ints>([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
}
EDGEWISE_INLINE Floats power_of_two(Ints n) {  // -126 <= n <= 127
  return quarters<Floats>([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23)); });
}

// Lanes i and i ^ kApart change places.
template <int kApart>
EDGEWISE_INLINE Floats exchange(Floats a) {
  if constexpr (kApart == 1) return quarters<Floats>([&](int i) { return vrev64q_f32(a.v[i]); });
  if constexpr (kApart == 2) return quarters<Floats>([&](int i) { return vextq_f32(a.v[i], a.v[i], 2); });
  return quarters<Floats>([&](int i) { return a.v[i ^ (kApart / 4)]; });
}

// Sums across lanes halve the width: 16 to 8, 4, 2, 1.
EDGEWISE_INLINE float sum(Floats a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
EDGEWISE_INLINE float maximum(Floats a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3])));
}
EDGEWISE_INLINE int32_t sum_ints(Ints a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
EDGEWISE_INLINE int32_t maximum_int(Ints a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}

EDGEWISE_INLINE Floats load_float16(const uint16_t* p) {
  return quarters<Floats>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
EDGEWISE_INLINE Floats load_bfloat16(const uint16_t* p) {
  return quarters<Floats>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
EDGEWISE_INLINE Floats load_int8(const int8_t* p) {
  const int8x16_t all = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
EDGEWISE_INLINE void store_int8(int8_t* p, Ints a) {  // saturates
  const int16x8_t low = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
