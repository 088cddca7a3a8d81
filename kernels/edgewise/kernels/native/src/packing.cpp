#include "packing.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "abi.h"
#include "float16.h"
#include "rotation.h"
#include "rounding.h"
#include "runtime.h"

namespace edgewise {
namespace {

constexpr float kLargestHalf = 65504.0f;

enum class Block : int32_t { kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8 };  // numbers of GGUF

// One row as integers, before it goes into a panel.
struct Codes {
  explicit Codes(int64_t groups)
      : values(static_cast<size_t>(groups) * kGroup), scales(static_cast<size_t>(groups)), minima(static_cast<size_t>(groups)) {}
  std::vector<uint8_t> values;  // two's complement for kInt8, 0 to 15 otherwise
  std::vector<uint16_t> scales, minima;
};

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

uint16_t& scale_at(uint8_t* scales, WeightFormat format, int64_t group, int row) {
  return reinterpret_cast<uint16_t*>(scales)[group * (format == WeightFormat::kInt4 ? 32 : 16) + row];
}

uint16_t& minimum_at(uint8_t* scales, int64_t group, int row) { return reinterpret_cast<uint16_t*>(scales)[group * 32 + 16 + row]; }

void put_codes(const Codes& from, WeightFormat format, int64_t cols, uint8_t* data, int64_t row) {
  const Place to = place(data, format, cols, row);
  const int64_t groups = groups_of(cols);
  for (int64_t g = 0; g < groups; ++g) {
    scale_at(to.scales, format, g, to.row) = from.scales[g];
    if (format == WeightFormat::kInt4) minimum_at(to.scales, g, to.row) = from.minima[g];
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

bool is_finite_half(uint16_t x) { return (x & 0x7c00) != 0x7c00; }

// A row of GGUF blocks as codes of `format`, with no loss; false if the format cannot hold them or a scale or minimum is not finite.
bool read_blocks(const uint8_t* raw, Block block, WeightFormat format, int64_t cols, Codes& to) {
  const bool bytes = block == Block::kQ8_0, minimum = block == Block::kQ4_1;
  const WeightFormat own = bytes ? WeightFormat::kInt8 : minimum ? WeightFormat::kInt4 : WeightFormat::kInt4Even;
  if (format != own && (block != Block::kQ4_0 || format == WeightFormat::kInt8Rotated)) return false;
  for (int64_t g = 0; g < cols / kGroup; ++g) {
    uint8_t* codes = to.values.data() + g * kGroup;
    std::memcpy(&to.scales[g], raw, 2);
    raw += 2;
    if (minimum) {
      std::memcpy(&to.minima[g], raw, 2);
      raw += 2;
    }
    if (!is_finite_half(to.scales[g]) || (minimum && !is_finite_half(to.minima[g]))) return false;
    if (bytes) {
      std::memcpy(codes, raw, kGroup);
      raw += kGroup;
      continue;
    }
    for (int i = 0; i < kGroup / 2; ++i) {
      codes[i] = raw[i] & 15;
      codes[i + kGroup / 2] = raw[i] >> 4;
    }
    raw += kGroup / 2;
    if (format == own) continue;
    if (format == WeightFormat::kInt8) {
      for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(codes[i] - 8);
    } else {
      const float least = -8.0f * from_float16(to.scales[g]);
      if (std::fabs(least) > kLargestHalf) return false;
      to.minima[g] = to_float16(least);
    }
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

void unpack_row(const Matrix& m, int32_t row, float* out) {
  const Place at = place(const_cast<uint8_t*>(m.data), m.format, m.cols, row);
  if (m.format == WeightFormat::kInt8Rotated) return unpack_rotated(at, m.cols, out);
  for (int64_t c = 0; c < m.cols; ++c) {
    if (m.format == WeightFormat::kFloat32) {
      out[c] = reinterpret_cast<const float*>(at.codes)[c * kPanelRows + at.row];
    } else if (m.format == WeightFormat::kBFloat16) {
      out[c] = from_bfloat16(reinterpret_cast<const uint16_t*>(at.codes)[c / 2 * 32 + at.row * 2 + c % 2]);
    } else {
      const uint8_t byte = at.codes[code_offset(m.format, c, at.row)];
      const float scale = from_float16(scale_at(at.scales, m.format, c / kGroup, at.row));
      const int code = c % 8 < 4 ? byte & 15 : byte >> 4;
      if (m.format == WeightFormat::kInt8) {
        out[c] = scale * static_cast<float>(static_cast<int8_t>(byte));
      } else if (m.format == WeightFormat::kInt4Even) {
        out[c] = scale * static_cast<float>(code - 8);
      } else {
        out[c] = scale * static_cast<float>(code) + from_float16(minimum_at(at.scales, c / kGroup, at.row));
      }
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
  int64_t bad[kMaxThreads];  // of each thread's share the first row that does not fit, or `rows`
};

// Rows share no bytes, so any division will do.
void pack_share(void* context, int thread) {
  RowsToPack& work = *static_cast<RowsToPack*>(context);
  const int64_t threads = pool().threads(), end = work.rows * (thread + 1) / threads;
  Codes codes(groups_of(work.cols));
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
// cannot hold.
EDGEWISE_EXPORT int64_t edgewise_pack_rows(const float* x, int64_t rows, int64_t cols, int32_t format, uint8_t* data, int64_t first) {
  RowsToPack work{x, rows, cols, static_cast<WeightFormat>(format), data, first, {}};
  pool().run(pack_share, &work);
  for (int thread = 0; thread < pool().threads(); ++thread) {
    if (work.bad[thread] < rows) return work.bad[thread];
  }
  return -1;
}

// Codes [rows, cols], a multiple of 32, with float16 scales and (kInt4) minima [rows, cols / 32], chosen elsewhere; -1.
EDGEWISE_EXPORT int64_t edgewise_pack_codes(const uint8_t* values, const uint16_t* scales, const uint16_t* minima, int64_t rows,
                                         int64_t cols, int32_t format, uint8_t* data, int64_t first) {
  const int64_t groups = groups_of(cols);
  Codes codes(groups);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(codes.values.data(), values + row * cols, static_cast<size_t>(cols));
    std::memcpy(codes.scales.data(), scales + row * groups, static_cast<size_t>(groups) * 2);
    if (minima != nullptr) std::memcpy(codes.minima.data(), minima + row * groups, static_cast<size_t>(groups) * 2);
    put_codes(codes, static_cast<WeightFormat>(format), cols, data, first + row);
  }
  return -1;
}

// Rows of GGUF blocks (block: GGUF's number of the type); -1, or the row that `read_blocks` refuses.
EDGEWISE_EXPORT int64_t edgewise_pack_blocks(const uint8_t* raw, int64_t row_bytes, int32_t block, int64_t rows, int64_t cols,
                                             int32_t format, uint8_t* data, int64_t first) {
  Codes codes(groups_of(cols));
  for (int64_t row = 0; row < rows; ++row) {
    const auto to = static_cast<WeightFormat>(format);
    if (!read_blocks(raw + row * row_bytes, static_cast<Block>(block), to, cols, codes)) return row;
    put_codes(codes, to, cols, data, first + row);
  }
  return -1;
}

// Rows [first, first + count) as floats; -1.
EDGEWISE_EXPORT int64_t edgewise_unpack_rows(const uint8_t* data, int64_t rows, int64_t cols, int32_t format, int64_t first,
                                          int64_t count, float* out) {
  const Matrix m{data, nullptr, static_cast<int32_t>(rows), static_cast<int32_t>(cols), static_cast<WeightFormat>(format)};
  for (int64_t i = 0; i < count; ++i) unpack_row(m, static_cast<int32_t>(first + i), out + i * cols);
  return -1;
}
