// Loops over a vocabulary, compiled once for each width of vectors: EDGEWISE_LOOPS names the copy, EDGEWISE_LOOP says for which
// instructions. No products and sums are joined (build_native.py) and none change places, so all copies give the same bits.
namespace EDGEWISE_LOOPS {

EDGEWISE_LOOP double largest_of(const double* x, int32_t count) {
  double lanes[8];
  for (int lane = 0; lane < 8; ++lane) lanes[lane] = kNothing;
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  double most = kNothing;
  for (; i < count; ++i) most = x[i] > most ? x[i] : most;
  for (int lane = 0; lane < 8; ++lane) most = lanes[lane] > most ? lanes[lane] : most;
  return most;
}

EDGEWISE_LOOP void widen(const float* x, int32_t count, double* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = static_cast<double>(x[i]);
}

EDGEWISE_LOOP void scale(double* x, int32_t count, double most, double temperature) {
  for (int32_t i = 0; i < count; ++i) x[i] = (x[i] - most) / temperature;
}

// e^x for x <= 0, 0 below -708; its last bit may be off. No branches: compilers make vectors of the loop.
EDGEWISE_LOOP void powers(const double* x, int32_t count, double* out) {
  constexpr double kToWhole = 6755399441055744.0;  // 1.5 * 2^52
  constexpr double kHigh = 0x1.62e42fefa3800p-1, kLow = 0x1.ef35793c76730p-45;  // log 2; the first has zeros at its end
  for (int32_t i = 0; i < count; ++i) {
    const double bounded = x[i] > -708.0 ? x[i] : -708.0;
    const double shifted = bounded * 1.4426950408889634 + kToWhole, n = shifted - kToWhole;
    const double r = (bounded - n * kHigh) - n * kLow;
    double p = 1.0 / 6227020800.0;  // the series of e^r, |r| <= log(2) / 2
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t power, exponent;
    __builtin_memcpy(&power, &p, sizeof(power));
    __builtin_memcpy(&exponent, &shifted, sizeof(exponent));
    power += exponent << 52;
    double result;
    __builtin_memcpy(&result, &power, sizeof(result));
    out[i] = x[i] > -708.0 ? result : 0.0;
  }
}

// Of up to kBlock numbers, in eight sums side by side.
EDGEWISE_LOOP double block_sum(const double* x, int32_t count) {
  double lanes[8] = {};
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += x[i + lane];
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// Ids whose number is at least `least`; returns how many. `ids` has room for all.
EDGEWISE_LOOP int32_t at_least(const double* x, int32_t count, double least, int32_t* ids) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; i += 8) {
    bool any = false;
    const int32_t end = i + 8 < count ? i + 8 : count;
    for (int32_t j = i; j < end; ++j) any |= x[j] >= least;
    for (int32_t j = i; any && j < end; ++j) {
      ids[found] = j;
      found += x[j] >= least;
    }
  }
  return found;
}

const Loops kLoops = {largest_of, widen, scale, powers, block_sum, at_least};

}  // namespace EDGEWISE_LOOPS
