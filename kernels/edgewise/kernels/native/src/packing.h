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
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edgewise {

constexpr int kPanelRows = 16;

// Functions here are static: a linker would keep one copy of an inline one, maybe that compiled for another instruction set.

static constexpr int64_t groups_of(int64_t cols) { return (cols + kGroup - 1) / kGroup; }

// Bytes of scales (and minima) before a panel's codes.
static constexpr int64_t scale_bytes(WeightFormat format, int64_t groups) {
  switch (format) {
    case WeightFormat::kInt4: return groups * 64;
    case WeightFormat::kInt8:
    case WeightFormat::kInt8Rotated:
    case WeightFormat::kInt4Even: return (groups * 32 + 63) / 64 * 64;
    default: return 0;
  }
}

// Bytes of a group's codes in a panel.
static constexpr int64_t group_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFloat32: return kPanelRows * kGroup * 4;
    case WeightFormat::kBFloat16: return kPanelRows * kGroup * 2;
    case WeightFormat::kInt8:
    case WeightFormat::kInt8Rotated: return kPanelRows * kGroup;
    default: return kPanelRows * kGroup / 2;
  }
}

static constexpr int64_t panel_bytes(WeightFormat format, int64_t cols) {
  return scale_bytes(format, groups_of(cols)) + groups_of(cols) * group_bytes(format);
}

static constexpr bool has_bytes(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt8Rotated;
}

static constexpr bool is_integer(WeightFormat format) {
  return format != WeightFormat::kFloat32 && format != WeightFormat::kBFloat16;
}

// A packed row as floats [cols]: gathers of tied embeddings, and the oracle of products.
void unpack_row(const Matrix&, int32_t row, float* out);

}  // namespace edgewise
