#include "rounding.h"

#include <cmath>
#include <limits>

#include "float16.h"
#include "kernels.h"

namespace edgewise {
namespace {

constexpr float kCuts[] = {0.0f, -0.02f, 0.04f, 0.08f};  // of the range, at both ends
constexpr int kRefits = 2;
constexpr int kLanes = 8;  // partial sums side by side, which compilers turn into vectors
constexpr float kToWhole = 12582912.0f;  // 1.5 * 2^23: adding and taking it away rounds to whole numbers
constexpr float kLargest = 65504.0f;

struct Sums {
  float codes, squares, products, error;
};

float total(const float* lanes) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

inline float in_order(float a, float b, float c, float d) { return (a + b) + (c + d); }

// What the codes nearest to x add up to.
Sums measure(const float* x, float scale, float minimum) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  static_assert(kGroup == 4 * kLanes);
  float code[kGroup], off[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    float c = (x[i] - minimum) * inverse;
    c = c > 0.0f ? c : 0.0f;
    c = c < 15.0f ? c : 15.0f;
    c = (c + kToWhole) - kToWhole;
    code[i] = c;
    off[i] = c * scale + minimum - x[i];
  }
  float codes[kLanes], squares[kLanes], products[kLanes], error[kLanes];
  for (int i = 0; i < kLanes; ++i) codes[i] = in_order(code[i], code[i + 8], code[i + 16], code[i + 24]);
  for (int i = 0; i < kLanes; ++i) {
    squares[i] = in_order(code[i] * code[i], code[i + 8] * code[i + 8], code[i + 16] * code[i + 16], code[i + 24] * code[i + 24]);
  }
  for (int i = 0; i < kLanes; ++i) {
    products[i] = in_order(code[i] * x[i], code[i + 8] * x[i + 8], code[i + 16] * x[i + 16], code[i + 24] * x[i + 24]);
  }
  for (int i = 0; i < kLanes; ++i) {
    error[i] = in_order(off[i] * off[i], off[i + 8] * off[i + 8], off[i + 16] * off[i + 16], off[i + 24] * off[i + 24]);
  }
  return {total(codes), total(squares), total(products), total(error)};
}

float nearest_half(float value, uint16_t* half) {
  *half = to_float16(std::fmin(std::fmax(value, -kLargest), kLargest));
  return from_float16(*half);
}

}  // namespace

void fit_int4(const float* x, uint16_t* scale, uint16_t* minimum) {
  float low = x[0], high = x[0], sum = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    low = std::fmin(low, x[i]);
    high = std::fmax(high, x[i]);
    sum += x[i];
  }
  float best = std::numeric_limits<float>::infinity();
  for (const float cut : kCuts) {
    const float off = cut * (high - low);
    float least = low + off, step = (high - off - least) / 15.0f;
    for (int refit = 0; refit <= kRefits; ++refit) {
      uint16_t half_step, half_least;
      least = nearest_half(least, &half_least);
      step = nearest_half(step, &half_step);
      const Sums sums = measure(x, step, least);
      if (sums.error < best) {
        best = sums.error;
        *scale = half_step;
        *minimum = half_least;
      }
      const float spread = sums.squares - sums.codes * sums.codes / kGroup;
      if (spread < 1e-3f) break;  // one code for all: nothing to fit
      const float fitted = (sums.products - sums.codes * sum / kGroup) / spread;
      if (!(fitted > 0.0f)) break;
      step = fitted;
      least = (sum - fitted * sums.codes) / kGroup;
    }
  }
}

}  // namespace edgewise
