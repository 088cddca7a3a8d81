// Products for Python: quantized_linear, tests and measurements.
#include <cstdlib>
#include <initializer_list>

#include "abi.h"
#include "packing.h"
#include "runtime.h"

using namespace edgewise;

namespace {

struct Call {
  Matrix matrix;
  Activations activations;
  const float* x;
  const float* norm;  // null: no norm
  float eps;
  int32_t rows;
  Epilogue epilogue;
  float* out;
  int64_t stride;
};

bool is_gated(Epilogue epilogue) { return epilogue == Epilogue::kSiluMul || epilogue == Epilogue::kGeluMul; }

// Share `thread` of `count` things in units: [first, first + size).
void share(int32_t count, int32_t unit, int thread, int threads, int32_t* first, int32_t* size) {
  const int64_t units = (count + unit - 1) / unit;
  const int32_t from = static_cast<int32_t>(units * thread / threads) * unit;
  const int32_t to = static_cast<int32_t>(units * (thread + 1) / threads) * unit;
  *first = from;
  *size = (to < count ? to : count) - from;
}

void work(void* context, int thread) {
  const Call& call = *static_cast<const Call*>(context);
  const Matrix& m = call.matrix;
  int32_t first, size;
  share(call.rows, 1, thread, pool().threads(), &first, &size);
  const float* x = call.x + static_cast<int64_t>(first) * m.cols;
  if (call.norm == nullptr) {
    kernels().prepare(x, m.cols, size, m.cols, m.format, call.activations, first);
  } else {
    kernels().norm_prepare(x, m.cols, size, m.cols, call.norm, call.eps, m.format, call.activations, first);
  }
  pool().barrier();
  share((m.rows + kPanelRows - 1) / kPanelRows, is_gated(call.epilogue) ? 2 : 1, thread, pool().threads(), &first, &size);
  if (size > 0) kernels().linear(m, call.activations, 0, call.rows, first, size, call.epilogue, call.out, call.stride);
}

int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Arrays for `rows` rows, one after the other in a buffer.
Activations lay_out(uint8_t* buffer, int64_t rows, int64_t cols, WeightFormat format) {
  const int64_t groups = groups_of(cols), padded = groups * kGroup;
  Activations a{};
  a.padded = static_cast<int32_t>(padded);
  if (!is_integer(format)) {
    a.values = reinterpret_cast<float*>(buffer);
    return a;
  }
  uint8_t* at = buffer;
  for (RoundedRows* each : {&a.coarse, &a.fine}) {
    each->codes = reinterpret_cast<int8_t*>(at);
    at += round_up(rows * padded);
    each->scales = reinterpret_cast<float*>(at);
    at += round_up(rows * groups * 4);
    each->sums = reinterpret_cast<float*>(at);
    at += round_up(rows * groups * 4);
    each->totals = reinterpret_cast<int32_t*>(at);
    at += round_up(rows * groups * 4);
    each->halves = reinterpret_cast<int32_t*>(at);
    at += round_up(rows * groups * 8);
  }
  return a;
}

}  // namespace

// Bytes of `scratch` for edgewise_linear.
EDGEWISE_EXPORT int64_t edgewise_linear_scratch(int64_t rows, int64_t cols, int32_t format) {
  const int64_t groups = groups_of(cols), padded = groups * kGroup;
  if (!is_integer(static_cast<WeightFormat>(format))) return rows * padded * 4;
  return 2 * (round_up(rows * padded) + 3 * round_up(rows * groups * 4) + round_up(rows * groups * 8));
}

// x [rows, cols], normalised first if `norm` is not null, times a packed matrix; out [rows, width] by stride.
EDGEWISE_EXPORT void edgewise_linear(const uint8_t* data, int32_t matrix_rows, int32_t cols, int32_t format, const float* bias,
                                     const float* x, int32_t rows, const float* norm, float eps, int32_t epilogue, uint8_t* scratch,
                                     float* out, int64_t stride) {
  const Matrix matrix{data, bias, matrix_rows, cols, static_cast<WeightFormat>(format)};
  Call call{matrix, lay_out(scratch, rows, cols, matrix.format), x, norm, eps, rows, static_cast<Epilogue>(epilogue), out, stride};
  pool().run(work, &call);
}

// A part of a product on the calling thread: activations as edgewise_linear left them in `scratch`.
EDGEWISE_EXPORT void edgewise_linear_part(const uint8_t* data, int32_t matrix_rows, int32_t cols, int32_t format, const float* bias,
                                          int32_t rows, int32_t row, int32_t some_rows, int32_t panel, int32_t panels,
                                          int32_t epilogue, uint8_t* scratch, float* out, int64_t stride) {
  const Matrix matrix{data, bias, matrix_rows, cols, static_cast<WeightFormat>(format)};
  kernels().linear(matrix, lay_out(scratch, rows, cols, matrix.format), row, some_rows, panel, panels,
                   static_cast<Epilogue>(epilogue), out, stride);
}
