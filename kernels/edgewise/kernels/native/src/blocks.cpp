// Layouts of blocks: ggml's ggml-common.h (structs) and ggml-quants.c (order of values), by Georgi Gerganov and others.
#include "blocks.h"

#include <cmath>
#include <cstring>

#include "float16.h"

namespace edgewise {
namespace {

constexpr float kLargestHalf = 65504.0f;

uint16_t half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

bool is_finite_half(uint16_t x) { return (x & 0x7c00) != 0x7c00; }

// Sixteen bytes of two halves: values 0 to 15 in the low ones, 16 to 31 in the high ones.
void split_halves(const uint8_t* raw, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = raw[i] & 15;
    codes[i + count] = raw[i] >> 4;
  }
}

// A block of 32 values: float16 scale, perhaps float16 minimum, perhaps a fifth bit of each value, then codes.
struct Small {
  int bytes;
  bool minimum, fifth, whole;  // whole: a byte for each value
  int zero;                    // the code of 0
};

Small layout_of(Block block) {
  switch (block) {
    case Block::kQ4_0: return {18, false, false, false, 8};
    case Block::kQ4_1: return {20, true, false, false, 0};
    case Block::kQ5_0: return {22, false, true, false, 16};
    case Block::kQ5_1: return {24, true, true, false, 0};
    default: return {34, false, false, true, 0};
  }
}

// `keep` : codes stay as they are stored (kInt4Even, whose zero is 8).
bool read_small(const uint8_t* raw, const Small& small, bool keep, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
  *scale = half_at(raw);
  raw += 2;
  *minimum = 0;
  if (small.minimum) {
    *minimum = half_at(raw);
    raw += 2;
  }
  if (!is_finite_half(*scale) || !is_finite_half(*minimum)) return false;
  if (small.whole) {
    std::memcpy(codes, raw, kGroup);
    return true;
  }
  uint32_t fifth = 0;
  if (small.fifth) {
    std::memcpy(&fifth, raw, sizeof(fifth));
    raw += 4;
  }
  split_halves(raw, kGroup / 2, codes);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(codes[i] + (fifth >> i & 1u) * 16 - (keep ? 0 : small.zero));
  return true;
}

bool read_small_row(const uint8_t* raw, Block block, WeightFormat format, int64_t cols, Codes* to) {
  const Small small = layout_of(block);
  const bool nibbles = !has_bytes(format), keep = nibbles;
  if (nibbles && (small.whole || small.fifth)) return false;
  if (format == WeightFormat::kInt8Rotated || (small.minimum && !has_minimum(format))) return false;
  if (format == WeightFormat::kInt8Min && !small.minimum) return false;
  for (int64_t g = 0; g < cols / kGroup; ++g, raw += small.bytes) {
    if (!read_small(raw, small, keep, to->values.data() + g * kGroup, &to->scales[g], &to->minima[g])) return false;
    if (format != WeightFormat::kInt4 || small.minimum) continue;
    const float least = -static_cast<float>(small.zero) * from_float16(to->scales[g]);
    if (std::fabs(least) > kLargestHalf) return false;
    to->minima[g] = to_float16(least);
  }
  return true;
}

// Eight scales and eight minima of 6 bits in 12 bytes.
void read_factors(const uint8_t* raw, uint8_t* factors) {
  for (int i = 0; i < 4; ++i) {
    factors[2 * i] = raw[i] & 63;
    factors[2 * i + 1] = raw[i + 4] & 63;
    factors[2 * (i + 4)] = static_cast<uint8_t>((raw[i + 8] & 15) | raw[i] >> 6 << 4);
    factors[2 * (i + 4) + 1] = static_cast<uint8_t>(raw[i + 8] >> 4 | raw[i + 4] >> 6 << 4);
  }
}

// Q4_K and Q5_K: value = scale * factor * code - minimum * factor.
bool read_k(const uint8_t* raw, bool fifth, uint8_t* codes, uint16_t* scale, uint16_t* minimum, uint8_t* factors) {
  *scale = half_at(raw);
  *minimum = half_at(raw + 2) ^ 0x8000u;  // is taken off: its negative is added
  read_factors(raw + 4, factors);
  const uint8_t *high = raw + 16, *low = high + (fifth ? 32 : 0);
  for (int run = 0; run < 4; ++run, low += 32, codes += 64) {
    split_halves(low, 32, codes);
    for (int i = 0; fifth && i < 64; ++i) codes[i] = static_cast<uint8_t>(codes[i] + (high[i % 32] >> (2 * run + i / 32) & 1) * 16);
  }
  return is_finite_half(*scale) && is_finite_half(*minimum);
}

// Q6_K: value = scale * factor * (code - 32), a signed factor for 16 values.
bool read_q6_k(const uint8_t* raw, uint8_t* codes, uint16_t* scale, uint8_t* factors) {
  const uint8_t *low = raw, *high = raw + 128;
  for (int run = 0; run < 2; ++run, low += 64, high += 32, codes += 128) {
    split_halves(low, 64, codes);
    for (int i = 0; i < 128; ++i) codes[i] = static_cast<uint8_t>(codes[i] + (high[i % 32] >> (i / 32 * 2) & 3) * 16 - 32);
  }
  std::memcpy(factors, raw + 192, 16);
  *scale = half_at(raw + 208);
  return is_finite_half(*scale);
}

bool read_large_row(const uint8_t* raw, Block block, WeightFormat format, int64_t cols, Codes* to) {
  const bool six = block == Block::kQ6_K, fifth = block == Block::kQ5_K;
  if (six ? format != WeightFormat::kInt8K16 : format != WeightFormat::kInt8K && (fifth || format != WeightFormat::kInt4K)) {
    return false;
  }
  for (int64_t s = 0; s < cols / kSuper; ++s, raw += six ? 210 : fifth ? 176 : 144) {
    uint8_t *codes = to->values.data() + s * kSuper, *factors = to->factors.data() + s * (kSuper / kGroup * 2);
    if (six ? !read_q6_k(raw, codes, &to->scales[s], factors)
            : !read_k(raw, fifth, codes, &to->scales[s], &to->minima[s], factors)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool read_blocks(const uint8_t* raw, Block block, WeightFormat format, int64_t cols, Codes* to) {
  if (!is_integer(format)) return false;
  const bool large = block == Block::kQ4_K || block == Block::kQ5_K || block == Block::kQ6_K;
  if (large != has_factors(format)) return false;
  return large ? read_large_row(raw, block, format, cols, to) : read_small_row(raw, block, format, cols, to);
}

}  // namespace edgewise
