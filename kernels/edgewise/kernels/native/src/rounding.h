// Choosing scale and minimum for weights in 4 bits.
#pragma once

#include <cstdint>

namespace edgewise {

// float16 numbers with which 32 values are nearest to scale * code + minimum, codes 0 to 15, in the sum of squares: from several
// ranges, each improved by least squares on its own codes, the best (models/weights/rounding.py:search_int4 says the same). The
// values are finite, and fit float16.
void fit_int4(const float* x, uint16_t* scale, uint16_t* minimum);

}  // namespace edgewise
