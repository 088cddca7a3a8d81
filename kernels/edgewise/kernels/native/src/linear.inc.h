// Activations rounded to integers by groups, and products of their rows with panels of packed weights.
//
// A row's result is a sum over groups in order: of integer formats acc = fma(dot, weight scale * activation scale, acc), where dot
// is the exact integer product of 32 columns (kInt8K16: twice, of 16), and where there are minima then acc = fma(minimum,
// activation scale * sum of codes, acc), all for the coarse codes and then for the fine ones where there are some; of float formats
// acc = fma(weight, activation, acc), column by column. So neither the tile of rows, nor the split over threads, nor the
// instruction set changes a bit.
#pragma once

#include "packing.h"
#include "rotation.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Of one group of weights, their scales and minima; `second`: the scale of columns 16 to 31, for kInt8K16.
struct GroupOfWeights {
  const uint8_t* codes;
  Floats scale, minimum, second;
};

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise

#if defined(EDGEWISE_ISA_AVX512)
#include "linear_avx512.inc.h"
#elif defined(EDGEWISE_ISA_AVX2)
#include "linear_avx2.inc.h"
#elif defined(EDGEWISE_ISA_NEON)
#include "linear_neon.inc.h"
#else
#include "linear_generic.inc.h"
#endif
#if defined(EDGEWISE_ISA_I8MM)
#include "linear_i8mm.inc.h"
#endif

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Below this the reciprocal of a scale overflows; such groups become zeros.
constexpr float kLeastMagnitude = 0x1p-119f;
constexpr int32_t kInfinityBits = 0x7f800000;
// Activations that stay in a core's second-level cache while panels pass.
constexpr int64_t kRowBlockBytes = 192 << 10;

#if !defined(EDGEWISE_ISA_I8MM)
constexpr int sums_of(int rows) { return rows; }
#endif

// Rows that go through a panel at once: of floats as many as leave registers for their sums.
static constexpr int tile_rows(WeightFormat format) { return is_integer(format) ? kTileRows : 4; }

// 32 floats to codes of one group. The largest magnitude is found among bit patterns, where NaN is above infinity.
EDGEWISE_INLINE void round_group(Floats low, Floats high, bool halves, const RoundedRows& to, int64_t group) {
  int8_t* codes = to.codes + group * kGroup;
  float *scale = to.scales + group, *sum = to.sums + group;
  int32_t* total = to.totals + group;
  const int32_t top = maximum_int(max_int(bits(abs(low)), bits(abs(high))));
  if (top >= kInfinityBits) {
    std::memset(codes, 0, kGroup);
    *scale = *sum = NAN;
    *total = 0;
    if (halves) to.halves[2 * group] = to.halves[2 * group + 1] = 0;
    return;
  }
  float largest;
  std::memcpy(&largest, &top, sizeof(largest));
  const bool any = largest >= kLeastMagnitude;
  const Floats inverse = splat(any ? 127.0f / largest : 0.0f);
  const Ints a = round(low * inverse), b = round(high * inverse);
  store_int8(codes, a);
  store_int8(codes + kLanes, b);
  *scale = any ? largest / 127.0f : 0.0f;
  *total = sum_ints(a + b);
  *sum = *scale * static_cast<float>(*total);
  if (!halves) return;
  to.halves[2 * group] = sum_ints(a);
  to.halves[2 * group + 1] = *total - to.halves[2 * group];
}

EDGEWISE_INLINE int part_of(int64_t left) { return left >= kLanes ? kLanes : left > 0 ? static_cast<int>(left) : 0; }

// 1 where a lane's number lacks the bit kApart, else -1.
template <int kApart>
struct Signs {
  alignas(64) float lanes[kLanes];
  constexpr Signs() : lanes() {
    for (int i = 0; i < kLanes; ++i) lanes[i] = (i & kApart) != 0 ? -1.0f : 1.0f;
  }
};

// Of values kApart lanes from each other, the sum in the lower lane and the difference in the upper one.
template <int kApart>
EDGEWISE_INLINE Floats butterfly(Floats x) {
  static constexpr Signs<kApart> kSigns;
  return fma(x, load(kSigns.lanes), exchange<kApart>(x));  // a product with one is exact
}

// rotate_group, in registers.
EDGEWISE_INLINE void rotate(Floats* low, Floats* high) {
  const Floats a = *low + *high, b = *low - *high;
  const Floats factor = splat(kRotatedActivation);
  *low = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(a)))) * factor;
  *high = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(b)))) * factor;
}

// What rounding left of a group, in registers.
EDGEWISE_INLINE Floats rest(Floats value, const int8_t* codes, float scale) {
  return fma(load_int8(codes), splat(-scale), value);
}

// The groups [first, first + groups) of a row whose scale is above the root mean square of all: `group(g)` is called for each,
// the others get a fine scale of zero.
template <typename Group>
EDGEWISE_INLINE void refine(const Activations& to, int64_t first, int64_t groups, Group&& group) {
  float squares = 0.0f;
  for (int64_t g = 0; g < groups; ++g) squares += to.coarse.scales[first + g] * to.coarse.scales[first + g];
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = to.coarse.scales[first + g];
    if (scale * scale * static_cast<float>(groups) > squares) {
      group(g, scale);
    } else {
      to.fine.scales[first + g] = 0.0f;
    }
  }
}

// value(col, count) gives `count` <= 16 columns of the row from `col`, zeros after them.
template <typename Value>
EDGEWISE_INLINE void prepare_row(int32_t cols, WeightFormat format, const Activations& to, int64_t row, Value&& value) {
  const int64_t groups = to.padded / kGroup, first = row * groups;
  const bool halves = format == WeightFormat::kInt8K16;
  const auto both = [&](int64_t g, Floats* low, Floats* high) {
    const int64_t col = g * kGroup;
    *low = value(col, part_of(cols - col));
    *high = value(col + kLanes, part_of(cols - col - kLanes));
    if (format == WeightFormat::kInt8Rotated) rotate(low, high);
  };
  Floats low, high;
  for (int64_t g = 0; g < groups; ++g) {
    both(g, &low, &high);
    if (is_integer(format)) {
      round_group(low, high, halves, to.coarse, first + g);
    } else {
      store(to.values + row * to.padded + g * kGroup, low);
      store(to.values + row * to.padded + g * kGroup + kLanes, high);
    }
  }
  if (!is_integer(format)) return;
  refine(to, first, groups, [&](int64_t g, float scale) {
    both(g, &low, &high);
    const int8_t* codes = to.coarse.codes + (first + g) * kGroup;
    round_group(rest(low, codes, scale), rest(high, codes + kLanes, scale), halves, to.fine, first + g);
  });
}

void prepare(const float* x, int64_t stride, int32_t rows, int32_t cols, WeightFormat format, const Activations& to, int32_t row) {
  for (int32_t i = 0; i < rows; ++i) {
    const float* from = x + i * stride;
    prepare_row(cols, format, to, row + i, [&](int64_t col, int count) { return load_part(from + col, count); });
  }
}

void norm_prepare(const float* x, int64_t stride, int32_t rows, int32_t cols, const float* weight, float eps, WeightFormat format,
                  const Activations& to, int32_t row) {
  for (int32_t i = 0; i < rows; ++i) {
    const float* from = x + i * stride;
    const Floats scale = splat(rms_scale(from, cols, eps));
    prepare_row(cols, format, to, row + i, [&](int64_t col, int count) {
      return load_part(from + col, count) * scale * load_part(weight + col, count);
    });
  }
}

// One panel's stream.
struct Panel {
  const uint8_t* scales;
  const uint8_t* codes;
};

template <WeightFormat kFormat>
EDGEWISE_INLINE Panel panel_of(const Matrix& m, int64_t index) {
  const uint8_t* at = m.data + index * panel_bytes(kFormat, m.cols);
  return {at, at + scale_bytes(kFormat, groups_of(m.cols))};
}

EDGEWISE_INLINE Floats load_halves(const uint8_t* from) { return load_float16(reinterpret_cast<const uint16_t*>(from)); }
EDGEWISE_INLINE Floats load_factors(const uint8_t* from) { return load_int8(reinterpret_cast<const int8_t*>(from)); }

// Walks over the scales of a panel, group by group.
template <WeightFormat kFormat>
struct Scales {
  const uint8_t* at;
  Floats scale, minimum;  // of kSuper columns

  EDGEWISE_INLINE void take(int64_t group, GroupOfWeights* w) {
    constexpr int64_t kHalves = half_bytes(kFormat), kRow = 2 * kPanelRows;
    if constexpr (!has_factors(kFormat)) {
      w->scale = load_halves(at);
      if constexpr (has_minimum(kFormat)) w->minimum = load_halves(at + kRow);
      at += kHalves;
    } else {
      if (group % (kSuper / kGroup) == 0) {
        scale = load_halves(at);
        if constexpr (has_minimum(kFormat)) minimum = load_halves(at + kRow);
        at += kHalves;
      }
      w->scale = scale * load_factors(at);
      const Floats other = load_factors(at + kPanelRows);
      if constexpr (has_minimum(kFormat)) {
        w->minimum = minimum * other;
      } else {
        w->second = scale * other;
      }
      at += kRow;
    }
  }
};

// acc += a group of weights times the codes of kRows rows, `at` of which is the first row's group. With kSome, rows whose scale is
// zero have no codes and stay as they are.
template <WeightFormat kFormat, int kRows, bool kSome>
EDGEWISE_INLINE void add_group(const GroupOfWeights& w, const RoundedRows& x, int64_t at, int64_t groups, Floats* acc) {
#if defined(EDGEWISE_ISA_I8MM)
  if constexpr (is_paired(kRows)) return add_pairs<kFormat, kRows, kSome>(w, x, at, groups, acc);
#endif
  Ints dots[kRows], seconds[kRows];
  const int64_t stride = groups * kGroup;
  const int8_t* codes = x.codes + at * kGroup;
  const int32_t* totals = x.totals + at;
  if constexpr (kFormat == WeightFormat::kInt8K16) {
    const int32_t* halves = x.halves + 2 * at;
    dot_int8<kRows, kGroup / 2>(w.codes, codes, stride, halves, 2 * groups, dots);
    dot_int8<kRows, kGroup / 2>(w.codes + group_bytes(kFormat) / 2, codes + kGroup / 2, stride, halves + 1, 2 * groups, seconds);
  } else if constexpr (has_bytes(kFormat)) {
    dot_int8<kRows, kGroup>(w.codes, codes, stride, totals, groups, dots);
  } else {
    dot_int4<kRows>(w.codes, codes, stride, dots);
  }
  for (int i = 0; i < kRows; ++i) {
    const float scale = x.scales[at + i * groups];
    if (kSome && scale == 0.0f) continue;
    if constexpr (kFormat == WeightFormat::kInt4Even) dots[i] = dots[i] - shift_left<3>(splat_int(totals[i * groups]));
    acc[i] = fma(to_floats(dots[i]), w.scale * splat(scale), acc[i]);
    if constexpr (kFormat == WeightFormat::kInt8K16) acc[i] = fma(to_floats(seconds[i]), w.second * splat(scale), acc[i]);
    if constexpr (has_minimum(kFormat)) acc[i] = fma(w.minimum, splat(x.sums[at + i * groups]), acc[i]);
  }
}

template <int kRows>
EDGEWISE_INLINE bool any_scale(const float* scales, int64_t groups) {
  bool any = false;
  for (int i = 0; i < kRows; ++i) any |= scales[i * groups] != 0.0f;
  return any;
}

// kRows rows from `row` times a panel of integers; acc has sums_of(kRows) places.
template <WeightFormat kFormat, int kRows>
EDGEWISE_INLINE void integer_tile(const Panel& panel, const Activations& a, int64_t row, Floats* acc) {
  const int64_t groups = a.padded / kGroup, first = row * groups;
  Scales<kFormat> scales{panel.scales, splat(0.0f), splat(0.0f)};
  GroupOfWeights w{panel.codes, splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int i = 0; i < sums_of(kRows); ++i) acc[i] = splat(0.0f);
  for (int64_t g = 0; g < groups; ++g, w.codes += group_bytes(kFormat)) {
    if constexpr (kRows <= kStreamRows) prefetch(w.codes + kPrefetchBytes, group_bytes(kFormat));
    scales.take(g, &w);
    add_group<kFormat, kRows, false>(w, a.coarse, first + g, groups, acc);
    if (any_scale<kRows>(a.fine.scales + first + g, groups)) {
      add_group<kFormat, kRows, true>(w, a.fine, first + g, groups, acc);
    }
  }
#if defined(EDGEWISE_ISA_I8MM)
  if constexpr (is_paired(kRows)) part_pairs<kRows>(acc);
#endif
}

// kRows rows from `row` times a panel of floats, two columns at a time.
template <WeightFormat kFormat, int kRows>
EDGEWISE_INLINE void float_tile(const Panel& panel, const Activations& a, int64_t row, Floats* acc) {
  const float* x = a.values + row * a.padded;
  const uint8_t* w = panel.codes;
  constexpr int64_t kPair = group_bytes(kFormat) / (kGroup / 2);
  for (int i = 0; i < kRows; ++i) acc[i] = splat(0.0f);
  for (int32_t c = 0; c < a.padded; c += 2, w += kPair) {
    if constexpr (kRows <= kStreamRows) prefetch(w + kPrefetchBytes, kPair);
    Floats even, odd;
    if constexpr (kFormat == WeightFormat::kFloat32) {
      even = load(reinterpret_cast<const float*>(w));
      odd = load(reinterpret_cast<const float*>(w) + kLanes);
    } else {
      load_bfloat16_pairs(reinterpret_cast<const uint16_t*>(w), even, odd);
    }
    for (int i = 0; i < kRows; ++i) {
      acc[i] = fma(even, splat(x[i * a.padded + c]), acc[i]);
      acc[i] = fma(odd, splat(x[i * a.padded + c + 1]), acc[i]);
    }
  }
}

template <WeightFormat kFormat, int kRows>
EDGEWISE_INLINE void tile(const Matrix& m, int64_t panel, const Activations& a, int64_t row, Floats* acc) {
  if constexpr (is_integer(kFormat)) {
    integer_tile<kFormat, kRows>(panel_of<kFormat>(m, panel), a, row, acc);
  } else {
    float_tile<kFormat, kRows>(panel_of<kFormat>(m, panel), a, row, acc);
  }
  if (m.bias == nullptr) return;
  const int64_t col = panel * kPanelRows;
  const Floats bias = load_part(m.bias + col, part_of(m.rows - col));
  for (int i = 0; i < kRows; ++i) acc[i] = acc[i] + bias;
}

EDGEWISE_INLINE Floats gated(Epilogue epilogue, Floats gate, Floats up) {
  if (epilogue == Epilogue::kSiluMul) return gate * sigmoid(gate) * up;
  // gelu by tanh (Hendrycks and Gimpel 2016): 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  const Floats cubic = fma(gate * gate * gate, splat(0.044715f), gate);
  return gate * sigmoid(cubic * splat(1.5957691216f)) * up;
}

void gate(Epilogue epilogue, const float* both, int32_t pairs, float* out) {
  for (int32_t i = 0; i < pairs; ++i, both += 2 * kPanelRows, out += kPanelRows) {
    store(out, gated(epilogue, load(both), load(both + kPanelRows)));
  }
}

struct Output {
  Epilogue epilogue;
  float* data;
  int64_t stride;
};

// A tile and what follows it: one panel, or a gate panel and the up panel after it.
template <WeightFormat kFormat, int kRows>
void product(const Matrix& m, int64_t panel, const Activations& a, int64_t row, const Output& out) {
  Floats acc[sums_of(kRows)];
  tile<kFormat, kRows>(m, panel, a, row, acc);
  if (out.epilogue == Epilogue::kSiluMul || out.epilogue == Epilogue::kGeluMul) {
    Floats up[sums_of(kRows)];
    tile<kFormat, kRows>(m, panel + 1, a, row, up);
    const int64_t col = panel / 2 * kPanelRows;
    for (int i = 0; i < kRows; ++i) store(out.data + (row + i) * out.stride + col, gated(out.epilogue, acc[i], up[i]));
    return;
  }
  const int64_t col = panel * kPanelRows;
  const int count = part_of(m.rows - col);
  for (int i = 0; i < kRows; ++i) {
    float* to = out.data + (row + i) * out.stride + col;
    store_part(to, out.epilogue == Epilogue::kAdd ? load_part(to, count) + acc[i] : acc[i], count);
  }
}

using Product = void (*)(const Matrix&, int64_t, const Activations&, int64_t, const Output&);

// product<kFormat, rows> for 1 <= rows <= tile_rows(kFormat)
template <WeightFormat kFormat, int kRows = tile_rows(kFormat)>
EDGEWISE_INLINE Product product_of(int32_t rows) {
  if constexpr (kRows == 1) {
    return product<kFormat, 1>;
  } else {
    return rows == kRows ? product<kFormat, kRows> : product_of<kFormat, kRows - 1>(rows);
  }
}

template <WeightFormat kFormat>
void multiply(const Matrix& m, const Activations& a, int32_t row, int32_t rows, int32_t panel, int32_t panels, const Output& out) {
  const int step = out.epilogue == Epilogue::kSiluMul || out.epilogue == Epilogue::kGeluMul ? 2 : 1;
  const int64_t row_bytes = a.padded * (is_integer(kFormat) ? 1 : 4);
  constexpr int kTile = tile_rows(kFormat);
  const int64_t block = kRowBlockBytes / row_bytes / kTile * kTile, end = row + rows;
  for (int64_t from = row; from < end;) {
    const int64_t to = block > 0 && end - from > block ? from + block : block > 0 ? end : from + kTile < end ? from + kTile : end;
    for (int32_t p = panel; p < panel + panels; p += step) {
      for (int64_t r = from; r < to; r += kTile) {
        const int64_t left = to - r;
        product_of<kFormat>(left < kTile ? static_cast<int32_t>(left) : kTile)(m, p, a, r, out);
      }
    }
    from = to;
  }
}

void linear(const Matrix& m, const Activations& a, int32_t row, int32_t rows, int32_t panel, int32_t panels, Epilogue epilogue,
            float* out, int64_t stride) {
  const Output to{epilogue, out, stride};
  switch (m.format) {
    case WeightFormat::kFloat32: return multiply<WeightFormat::kFloat32>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kBFloat16: return multiply<WeightFormat::kBFloat16>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt8:
    case WeightFormat::kInt8Rotated: return multiply<WeightFormat::kInt8>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt4: return multiply<WeightFormat::kInt4>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt4Even: return multiply<WeightFormat::kInt4Even>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt8Min: return multiply<WeightFormat::kInt8Min>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt4K: return multiply<WeightFormat::kInt4K>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt8K: return multiply<WeightFormat::kInt8K>(m, a, row, rows, panel, panels, to);
    case WeightFormat::kInt8K16: return multiply<WeightFormat::kInt8K16>(m, a, row, rows, panel, panels, to);
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
