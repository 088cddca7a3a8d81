// Products of bytes with NEON's dot product: four registers hold four columns of the 16 rows of a panel, or of 16 keys of a page.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// sums += four columns of four rows (w) times the four codes in lane kLane of x; all with sign, or all without
template <int kLane>
EDGEWISE_INLINE int32x4_t add_dots(int32x4_t sums, int8x16_t w, int8x16_t x) {
  return vdotq_laneq_s32(sums, w, x, kLane);
}
template <int kLane>
EDGEWISE_INLINE int32x4_t add_dots(int32x4_t sums, uint8x16_t w, uint8x16_t x) {
  return vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sums), w, x, kLane));
}

EDGEWISE_INLINE void load_codes(const uint8_t* from, int8x16_t& to) { to = vreinterpretq_s8_u8(vld1q_u8(from)); }
EDGEWISE_INLINE void load_codes(const uint8_t* from, uint8x16_t& to) { to = vld1q_u8(from); }

// dots += four columns of the panel (w[0..3]) times the four codes in lane kLane
template <int kLane, typename Bytes>
EDGEWISE_INLINE void add_products(Ints& dots, const Bytes* w, Bytes x) {
  for (int j = 0; j < 4; ++j) dots.v[j] = add_dots<kLane>(dots.v[j], w[j], x);
}

// The same for kRows rows of codes; `w` is where lane 0 would find its columns.
template <int kRows, int kLane, typename Bytes>
EDGEWISE_INLINE void add_four(const uint8_t* w, const Bytes* x, Ints* dots) {
  Bytes columns[4];
  for (int j = 0; j < 4; ++j) load_codes(w + 64 * kLane + 16 * j, columns[j]);
  for (int i = 0; i < kRows; ++i) add_products<kLane>(dots[i], columns, x[i]);
}

// dots += 16 columns, four to a lane
template <int kRows, typename Bytes>
EDGEWISE_INLINE void add_sixteen(const uint8_t* w, const Bytes* x, Ints* dots) {
  add_four<kRows, 0>(w, x, dots);
  add_four<kRows, 1>(w, x, dots);
  add_four<kRows, 2>(w, x, dots);
  add_four<kRows, 3>(w, x, dots);
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
