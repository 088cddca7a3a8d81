// The layout of packed weights, the same on every processor.
//
// Rows go in panels of 16, so that a register holds one column of a panel, or four neighbouring columns as bytes. A panel is one
// stream: first the scales of all its groups, then its codes, everything a multiple of 64 bytes. Within a panel, for row r:
//   kFloat32   column c: float c * 16 + r
//   kBFloat16  column c: word (c / 2) * 32 + r * 2 + c % 2
//   kInt8      group g: float16 scale g * 16 + r; column c of the group: byte g * 512 + (c / 4) * 64 + r * 4 + c % 4
//   kInt4      group g: float16 scale g * 32 + r and minimum g * 32 + 16 + r; column c of the group: byte
//              g * 256 + (c / 8) * 64 + r * 4 + c % 4, low half where c % 8 < 4
//   kInt4Even  scales as kInt8, codes as kInt4
//   kInt8Rotated  as kInt8
//   kInt8Min   scales and minima as kInt4, codes as kInt8
//   kInt4K     256 columns s: float16 scale s * 160 + r and minimum s * 160 + 16 + r; group g of them: factor of the scale in byte
//              s * 320 + 64 + g * 32 + r, that of the minimum 16 bytes on; codes as kInt4
//   kInt8K     scales as kInt4K, codes as kInt8
//   kInt8K16   256 columns s: float16 scale s * 144 + r; 16 columns h of them: factor in byte s * 288 + 32 + h * 16 + r; codes as
//              kInt8
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edgewise {

constexpr int kPanelRows = 16;
constexpr int kSuper = 256;  // columns that share a float16 scale where groups have factors

// Functions here are static: a linker would keep one copy of an inline one, maybe that compiled for another instruction set.

static constexpr int64_t groups_of(int64_t cols) { return (cols + kGroup - 1) / kGroup; }

static constexpr bool has_bytes(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt8Rotated || format == WeightFormat::kInt8Min ||
         format == WeightFormat::kInt8K || format == WeightFormat::kInt8K16;
}

static constexpr bool has_factors(WeightFormat format) {
  return format == WeightFormat::kInt4K || format == WeightFormat::kInt8K || format == WeightFormat::kInt8K16;
}

static constexpr bool has_minimum(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kInt8Min || format == WeightFormat::kInt4K ||
         format == WeightFormat::kInt8K;
}

static constexpr bool is_integer(WeightFormat format) {
  return format != WeightFormat::kFloat32 && format != WeightFormat::kBFloat16;
}

// Bytes of float16 scales and minima of a panel, of a group or of kSuper columns, before any factors.
static constexpr int64_t half_bytes(WeightFormat format) { return has_minimum(format) ? 4 * kPanelRows : 2 * kPanelRows; }

// Bytes of scales, minima and factors of kSuper columns of a panel, in formats that have factors.
static constexpr int64_t super_bytes(WeightFormat format) { return half_bytes(format) + kSuper / kGroup * 2 * kPanelRows; }

// Bytes of scales (and minima) before a panel's codes.
static constexpr int64_t scale_bytes(WeightFormat format, int64_t groups) {
  if (!is_integer(format)) return 0;
  const int64_t bytes = has_factors(format) ? (groups * kGroup + kSuper - 1) / kSuper * super_bytes(format) : groups * half_bytes(format);
  return (bytes + 63) / 64 * 64;
}

// Bytes of a group's codes in a panel.
static constexpr int64_t group_bytes(WeightFormat format) {
  if (format == WeightFormat::kFloat32) return kPanelRows * kGroup * 4;
  if (format == WeightFormat::kBFloat16) return kPanelRows * kGroup * 2;
  return has_bytes(format) ? kPanelRows * kGroup : kPanelRows * kGroup / 2;
}

static constexpr int64_t panel_bytes(WeightFormat format, int64_t cols) {
  return scale_bytes(format, groups_of(cols)) + groups_of(cols) * group_bytes(format);
}

// A packed row as floats [cols]: gathers of tied embeddings, and the oracle of products.
void unpack_row(const Matrix&, int32_t row, float* out);

}  // namespace edgewise
