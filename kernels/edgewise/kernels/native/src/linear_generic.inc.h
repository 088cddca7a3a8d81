// Integer products of a group in plain C++.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr int kTileRows = 4;
constexpr int kStreamRows = 0;
constexpr int64_t kPrefetchBytes = 0;

EDGEWISE_INLINE void prefetch(const uint8_t*, int64_t) {}

// dots += four columns of the panel times four codes
EDGEWISE_INLINE void add_products(Ints& dots, const int8_t* w, const int8_t* x) {
  for (int r = 0; r < 16; ++r) {
    for (int e = 0; e < 4; ++e) dots.v[r] += w[4 * r + e] * x[e];
  }
}

template <int kRows, int kColumns>
EDGEWISE_INLINE void dot_int8(const uint8_t* w, const int8_t* x, int64_t stride, const int32_t*, int64_t, Ints* dots) {
  for (int i = 0; i < kRows; ++i) {
    dots[i] = splat_int(0);
    for (int k = 0; k < kColumns / 4; ++k) add_products(dots[i], reinterpret_cast<const int8_t*>(w) + 64 * k, x + i * stride + 4 * k);
  }
}

template <int kRows>
EDGEWISE_INLINE void dot_int4(const uint8_t* w, const int8_t* x, int64_t stride, Ints* dots) {
  for (int i = 0; i < kRows; ++i) dots[i] = splat_int(0);
  for (int k = 0; k < kGroup / 8; ++k) {
    int8_t low[64], high[64];
    for (int j = 0; j < 64; ++j) {
      low[j] = static_cast<int8_t>(w[64 * k + j] & 15);
      high[j] = static_cast<int8_t>(w[64 * k + j] >> 4);
    }
    for (int i = 0; i < kRows; ++i) {
      add_products(dots[i], low, x + i * stride + 8 * k);
      add_products(dots[i], high, x + i * stride + 8 * k + 4);
    }
  }
}

// Words (column 0, column 1) of 16 rows to two columns.
EDGEWISE_INLINE void load_bfloat16_pairs(const uint16_t* w, Floats& even, Floats& odd) {
  for (int r = 0; r < 16; ++r) {
    even.v[r] = from_bfloat16(w[2 * r]);
    odd.v[r] = from_bfloat16(w[2 * r + 1]);
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
