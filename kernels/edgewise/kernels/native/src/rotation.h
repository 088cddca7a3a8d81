// The Walsh-Hadamard transform of 32 values, which spreads a large one over all: what is rounded with it is rounded finer.
//
// H is symmetric and H * H = 32, so w . x = (w H / 4) . (H x / 8); both factors are exact. In stages of additions, first of values
// 16 apart, then 1, 2, 4 and 8 apart: the same order, so the same bits, here, in linear.inc.h and in the reference.
#pragma once

#include "float16.h"

namespace edgewise {

constexpr float kRotatedWeight = 0.25f, kRotatedActivation = 0.125f;

EDGEWISE_SCALAR void rotate_group(float* x, float factor) {
  constexpr int kStages[] = {16, 1, 2, 4, 8};
  for (const int apart : kStages) {
    for (int i = 0; i < 32; ++i) {
      if ((i & apart) != 0) continue;
      const float a = x[i], b = x[i + apart];
      x[i] = a + b;
      x[i + apart] = a - b;
    }
  }
  for (int i = 0; i < 32; ++i) x[i] *= factor;
}

}  // namespace edgewise
