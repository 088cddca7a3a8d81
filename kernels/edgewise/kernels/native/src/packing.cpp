#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "abi.h"
#include "blocks.h"
#include "float16.h"
#include "rotation.h"
#include "rounding.h"
#include "runtime.h"

namespace edgewise {
namespace {

constexpr float kLargestHalf = 65504.0f;

struct Place {
  uint8_t* scales;
  uint8_t* codes;
  int row;  // in the panel
};

Place place(uint8_t* data, WeightFormat format, int64_t cols, int64_t row) {
  uint8_t* panel = data + row / kPanelRows * panel_bytes(format, cols);
  return {panel, panel + scale_bytes(format, groups_of(cols)), static_cast<int>(row % kPanelRows)};
}

int64_t code_offset(WeightFormat format, int64_t col, int row) {
  const int64_t group = col / kGroup * group_bytes(format), c = col % kGroup;
  return has_bytes(format) ? group + c / 4 * 64 + row * 4 + c % 4 : group + c / 8 * 64 + row * 4 + c % 4;
}

// Of a group, or of the kSuper columns with this number.
uint16_t& scale_at(uint8_t* scales, WeightFormat format, int64_t index, int row) {
  const int64_t stride = has_factors(format) ? super_bytes(format) : half_bytes(format);
  return reinterpret_cast<uint16_t*>(scales + index * stride)[row];
}

uint16_t& minimum_at(uint8_t* scales, WeightFormat format, int64_t index, int row) {
  return scale_at(scales, format, index, row + kPanelRows);
}

// The factors of a group: of its scale and its minimum, or of its first and its second 16 columns.
uint8_t& factor_at(uint8_t* scales, WeightFormat format, int64_t group, int which, int row) {
  constexpr int64_t kGroups = kSuper / kGroup;
  return scales[group / kGroups * super_bytes(format) + half_bytes(format) + (group % kGroups * 2 + which) * kPanelRows + row];
}

void put_codes(const Codes& from, WeightFormat format, int64_t cols, uint8_t* data, int64_t row) {
  const Place to = place(data, format, cols, row);
  const int64_t groups = groups_of(cols), scales = has_factors(format) ? groups * kGroup / kSuper : groups;
  for (int64_t i = 0; i < scales; ++i) {
    scale_at(to.scales, format, i, to.row) = from.scales[i];
    if (has_minimum(format)) minimum_at(to.scales, format, i, to.row) = from.minima[i];
  }
  for (int64_t i = 0; has_factors(format) && i < 2 * groups; ++i) {
    factor_at(to.scales, format, i / 2, static_cast<int>(i % 2), to.row) = from.factors[i];
  }
  for (int64_t c = 0; c < groups * kGroup; ++c) {
    uint8_t& byte = to.codes[code_offset(format, c, to.row)];
    const uint8_t code = from.values[c];
    if (has_bytes(format)) {
      byte = code;
    } else {
      byte = c % 8 < 4 ? static_cast<uint8_t>((byte & 0xf0) | code) : static_cast<uint8_t>((byte & 0x0f) | code << 4);
    }
  }
}

void put_floats(const float* x, WeightFormat format, int64_t cols, uint8_t* data, int64_t row) {
  const Place to = place(data, format, cols, row);
  for (int64_t c = 0; c < groups_of(cols) * kGroup; ++c) {
    const float value = c < cols ? x[c] : 0.0f;
    if (format == WeightFormat::kFloat32) {
      reinterpret_cast<float*>(to.codes)[c * kPanelRows + to.row] = value;
    } else {
      reinterpret_cast<uint16_t*>(to.codes)[c / 2 * 32 + to.row * 2 + c % 2] = to_bfloat16(value);
    }
  }
}

// To the nearest whole number in range, half to even: adding 1.5 * 2^23 leaves it in the low bits. No library call, so loops of it
// become vectors on every processor.
inline uint8_t rounded(float x, float low, float high) {
  const float least = x > low ? x : low;
  return static_cast<uint8_t>(float_bits((least < high ? least : high) + 12582912.0f));
}

// To the nearest codes of one scale for 32: 8 bits by max|x| / 127, 4 bits by the extreme value / -8 (as GGUF's Q4_0).
// False if a value is not finite or too large for a float16 scale.
bool round_even(const float* x, WeightFormat format, uint8_t* codes, uint16_t* scale) {
  float extreme = 0.0f, finite = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    finite += x[i] * 0.0f;
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const bool wide = has_bytes(format);
  const float exact = wide ? std::fabs(extreme) / 127.0f : extreme / -8.0f;
  if (finite != 0.0f || std::fabs(exact) > kLargestHalf) return false;
  *scale = to_float16(exact);
  const float step = from_float16(*scale), inverse = step == 0.0f ? 0.0f : 1.0f / step;
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = wide ? rounded(x[i] * inverse, -127.0f, 127.0f) : rounded(x[i] * inverse + 8.0f, 0.0f, 15.0f);
  }
  return true;
}

// To the nearest of 16 equal steps (as GGUF's Q4_1) that `fit_int4` chooses. False as round_even.
bool round_between(const float* x, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
  float largest = 0.0f, finite = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    finite += x[i] * 0.0f;
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  if (finite != 0.0f || largest > kLargestHalf) return false;
  fit_int4(x, scale, minimum);
  const float least = from_float16(*minimum), step = from_float16(*scale), inverse = step == 0.0f ? 0.0f : 1.0f / step;
  for (int i = 0; i < kGroup; ++i) codes[i] = rounded((x[i] - least) * inverse, 0.0f, 15.0f);
  return true;
}

bool round_row(const float* x, WeightFormat format, int64_t cols, Codes& to) {
  for (int64_t g = 0; g < groups_of(cols); ++g) {
    float group[kGroup] = {};
    const int64_t left = cols - g * kGroup;
    std::memcpy(group, x + g * kGroup, sizeof(float) * static_cast<size_t>(left < kGroup ? left : kGroup));
    if (format == WeightFormat::kInt8Rotated) rotate_group(group, kRotatedWeight);
    uint8_t* codes = to.values.data() + g * kGroup;
    const bool done = format == WeightFormat::kInt4 ? round_between(group, codes, &to.scales[g], &to.minima[g])
                                                    : round_even(group, format, codes, &to.scales[g]);
    if (!done) return false;
  }
  return true;
}

void unpack_rotated(const Place& at, int64_t cols, float* out) {
  constexpr WeightFormat kFormat = WeightFormat::kInt8Rotated;
  for (int64_t g = 0; g < groups_of(cols); ++g) {
    float group[kGroup];
    const float scale = from_float16(scale_at(at.scales, kFormat, g, at.row));
    for (int i = 0; i < kGroup; ++i) {
      group[i] = scale * static_cast<float>(static_cast<int8_t>(at.codes[code_offset(kFormat, g * kGroup + i, at.row)]));
    }
    rotate_group(group, kRotatedActivation);
    const int64_t left = cols - g * kGroup;
    std::memcpy(out + g * kGroup, group, sizeof(float) * static_cast<size_t>(left < kGroup ? left : kGroup));
  }
}

}  // namespace

int32_t panel_rows() { return kPanelRows; }

namespace {

// What a column's code is multiplied with, and what is added.
struct Step {
  float scale, minimum;
};

Step step_of(const Place& at, WeightFormat format, int64_t col) {
  const int64_t group = col / kGroup, index = has_factors(format) ? col / kSuper : group;
  Step step{from_float16(scale_at(at.scales, format, index, at.row)), 0.0f};
  if (has_minimum(format)) step.minimum = from_float16(minimum_at(at.scales, format, index, at.row));
  if (!has_factors(format)) return step;
  const auto factor = [&](int which) { return static_cast<float>(static_cast<int8_t>(factor_at(at.scales, format, group, which, at.row))); };
  step.scale *= factor(format == WeightFormat::kInt8K16 ? static_cast<int>(col % kGroup / (kGroup / 2)) : 0);
  if (has_minimum(format)) step.minimum *= factor(1);
  return step;
}

int code_of(const Place& at, WeightFormat format, int64_t col) {
  const uint8_t byte = at.codes[code_offset(format, col, at.row)];
  if (has_bytes(format)) return static_cast<int8_t>(byte);
  return (col % 8 < 4 ? byte & 15 : byte >> 4) - (format == WeightFormat::kInt4Even ? 8 : 0);
}

}  // namespace

void unpack_row(const Matrix& m, int32_t row, float* out) {
  const Place at = place(const_cast<uint8_t*>(m.data), m.format, m.cols, row);
  if (m.format == WeightFormat::kInt8Rotated) return unpack_rotated(at, m.cols, out);
  for (int64_t c = 0; c < m.cols; ++c) {
    if (m.format == WeightFormat::kFloat32) {
      out[c] = reinterpret_cast<const float*>(at.codes)[c * kPanelRows + at.row];
    } else if (m.format == WeightFormat::kBFloat16) {
      out[c] = from_bfloat16(reinterpret_cast<const uint16_t*>(at.codes)[c / 2 * 32 + at.row * 2 + c % 2]);
    } else {
      const Step step = step_of(at, m.format, c);
      out[c] = step.scale * static_cast<float>(code_of(at, m.format, c));
      if (has_minimum(m.format)) out[c] += step.minimum;
    }
  }
}

}  // namespace edgewise

using namespace edgewise;

EDGEWISE_EXPORT int64_t edgewise_packed_bytes(int64_t rows, int64_t cols, int32_t format) {
  return (rows + kPanelRows - 1) / kPanelRows * panel_bytes(static_cast<WeightFormat>(format), cols);
}

namespace {

struct RowsToPack {
  const float* x;
  int64_t rows, cols;
  WeightFormat format;
  uint8_t* data;
  int64_t first;
  std::vector<Codes> codes;      // of each thread
  int64_t bad[kMaxThreads];  // of each thread's share the first row that does not fit, or `rows`
};

// Rows share no bytes, so any division will do.
void pack_share(void* context, int thread) {
  RowsToPack& work = *static_cast<RowsToPack*>(context);
  const int64_t threads = pool().threads(), end = work.rows * (thread + 1) / threads;
  Codes& codes = work.codes[thread];
  work.bad[thread] = work.rows;
  for (int64_t row = work.rows * thread / threads; row < end; ++row) {
    const float* from = work.x + row * work.cols;
    if (!is_integer(work.format)) {
      put_floats(from, work.format, work.cols, work.data, work.first + row);
    } else if (round_row(from, work.format, work.cols, codes)) {
      put_codes(codes, work.format, work.cols, work.data, work.first + row);
    } else {
      work.bad[thread] = row;
      return;
    }
  }
}

}  // namespace

// Floats [rows, cols] into rows [first, first + rows) of a matrix, on the pool; -1, or the first row with a value that the format
// cannot hold, or kNoMemory.
EDGEWISE_EXPORT int64_t edgewise_pack_rows(const float* x, int64_t rows, int64_t cols, int32_t format, uint8_t* data, int64_t first) {
  try {
    const auto alone = pool().hold();  // what is made here is made for as many threads as it has
    const int threads = pool().threads();
    RowsToPack work{x, rows, cols, static_cast<WeightFormat>(format), data, first, {}, {}};
    work.codes.assign(threads, Codes(groups_of(cols)));
    pool().run(pack_share, &work);
    const int64_t bad = *std::min_element(work.bad, work.bad + threads);
    return bad < rows ? bad : -1;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// Codes [rows, cols], a multiple of 32, with float16 scales and (kInt4) minima [rows, cols / 32], chosen elsewhere; -1, or kNoMemory.
EDGEWISE_EXPORT int64_t edgewise_pack_codes(const uint8_t* values, const uint16_t* scales, const uint16_t* minima, int64_t rows,
                                         int64_t cols, int32_t format, uint8_t* data, int64_t first) try {
  const int64_t groups = groups_of(cols);
  Codes codes(groups);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(codes.values.data(), values + row * cols, static_cast<size_t>(cols));
    std::memcpy(codes.scales.data(), scales + row * groups, static_cast<size_t>(groups) * 2);
    if (minima != nullptr) std::memcpy(codes.minima.data(), minima + row * groups, static_cast<size_t>(groups) * 2);
    put_codes(codes, static_cast<WeightFormat>(format), cols, data, first + row);
  }
  return -1;
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

// Rows of GGUF blocks (block: GGUF's number of the type); -1, or the row that `read_blocks` refuses, or kNoMemory.
EDGEWISE_EXPORT int64_t edgewise_pack_blocks(const uint8_t* raw, int64_t row_bytes, int32_t block, int64_t rows, int64_t cols,
                                             int32_t format, uint8_t* data, int64_t first) try {
  Codes codes(groups_of(cols));
  for (int64_t row = 0; row < rows; ++row) {
    const auto to = static_cast<WeightFormat>(format);
    if (!read_blocks(raw + row * row_bytes, static_cast<Block>(block), to, cols, &codes)) return row;
    put_codes(codes, to, cols, data, first + row);
  }
  return -1;
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

// Rows [first, first + count) as floats; -1.
EDGEWISE_EXPORT int64_t edgewise_unpack_rows(const uint8_t* data, int64_t rows, int64_t cols, int32_t format, int64_t first,
                                          int64_t count, float* out) {
  const Matrix m{data, nullptr, static_cast<int32_t>(rows), static_cast<int32_t>(cols), static_cast<WeightFormat>(format)};
  for (int64_t i = 0; i < count; ++i) unpack_row(m, static_cast<int32_t>(first + i), out + i * cols);
  return -1;
}
