// Rows of integers on their way into a panel, and how they are read from GGUF's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packing.h"

namespace edgewise {

// One row of a matrix of integers.
struct Codes {
  explicit Codes(int64_t groups)
      : values(static_cast<size_t>(groups) * kGroup),
        scales(static_cast<size_t>(groups)),
        minima(static_cast<size_t>(groups)),
        factors(static_cast<size_t>(groups) * 2) {}
  std::vector<uint8_t> values;  // two's complement for whole bytes, 0 to 15 otherwise
  std::vector<uint16_t> scales, minima;  // float16: of each group; of each eight where a format has factors
  std::vector<uint8_t> factors;  // two of each group, as packing.h says
};

// GGUF's block types that packed formats hold without loss; numbers are GGUF's.
enum class Block : int32_t {
  kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14,
};

// A row of blocks as codes of `format`, with no loss; false if the format cannot hold them or a scale or minimum is not finite.
bool read_blocks(const uint8_t* raw, Block block, WeightFormat format, int64_t cols, Codes* to);

}  // namespace edgewise
