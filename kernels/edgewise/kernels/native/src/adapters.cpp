// What low-rank adapters add to products (kernels/low_rank.py); part of Decoder, apart for its length.
//
// x W^T becomes x W^T + (x A^T) B^T for the tokens that ask for it. A and B are packed floats, so these are ordinary products of
// runs of rows: a token's bits do not depend on the others'. x A^T is made before the product's panels are shared, by each thread
// for itself where rows are few; B's panels are those of W, so whoever has computed some of W's adds B's to them.
#include <algorithm>

#include "packing.h"
#include "runtime.h"
#include "step.h"
#include "step.inc.h"

namespace edgewise {
namespace {

constexpr int32_t kRunRows = 16;  // tokens of one piece of x A^T
constexpr int32_t kProducts = 4;  // of a layer

bool is_gated(Epilogue epilogue) { return epilogue == Epilogue::kSiluMul || epilogue == Epilogue::kGeluMul; }

}  // namespace

// Tokens in runs of one adapter, and room for what is made of them.
void Decoder::begin_adapters() {
  runs_.clear();
  most_rank_ = 0;
  bool gates = false;
  for (int32_t i = 0; batch_.adapter_of != nullptr && i < batch_.tokens; ++i) {
    const int32_t adapter = batch_.adapter_of[i];
    if (adapter < 0) continue;
    const bool goes_on = !runs_.empty() && runs_.back().adapter == adapter && runs_.back().first + runs_.back().tokens == i;
    if (goes_on && runs_.back().tokens < kRunRows) {
      ++runs_.back().tokens;
    } else {
      runs_.push_back({adapter, i, 1});
    }
  }
  for (const Run& run : runs_) {
    for (int32_t i = 0; i < kProducts * shape_.layers; ++i) {
      const LowRank& pair = batch_.adapters[run.adapter][i];
      most_rank_ = std::max(most_rank_, pair.down.rows);
      gates |= i % kProducts == static_cast<int32_t>(Product::kGateUp) && pair.down.rows > 0;
    }
  }
  const int64_t floats = int64_t{batch_.tokens} * most_rank_;
  if (!small_) low_ = low_buffer_.take<float>(floats);
  for (int32_t i = 0; small_ && i < threads_; ++i) workers_[i].low.take<float>(floats);
  wide_ = gates ? wide_buffer_.take<float>(int64_t{batch_.tokens} * 2 * inner_width_) : nullptr;
}

// x A^T of the runs whose adapter has this product; `x` holds their rows as floats. Null if none has.
const float* Decoder::lower(Worker& me, int32_t layer, Product product, const Activations& x) {
  const auto pair_of = [&](const Run& run) -> const LowRank& { return low_rank(run, layer, product); };
  if (std::none_of(runs_.begin(), runs_.end(), [&](const Run& run) { return pair_of(run).down.rows > 0; })) return nullptr;
  float* low = small_ ? me.low.take<float>(0) : low_;
  const auto one = [&](int32_t index) {
    const Run& run = runs_[index];
    const Matrix& down = pair_of(run).down;
    if (down.rows == 0) return;
    Activations from{};
    from.values = x.values + int64_t{run.first} * x.padded;
    from.padded = x.padded;
    kernels_->linear(down, from, 0, run.tokens, 0, (down.rows + panel_rows() - 1) / panel_rows(), Epilogue::kStore,
                     low + int64_t{run.first} * most_rank_, down.rows);
  };
  const int32_t runs = static_cast<int32_t>(runs_.size());
  if (small_) {
    for (int32_t index = 0; index < runs; ++index) one(index);
  } else {
    share(me, runs, one);
    pool().barrier();
  }
  return low;
}

const LowRank& Decoder::low_rank(const Run& run, int32_t layer, Product product) const {
  return batch_.adapters[run.adapter][layer * kProducts + static_cast<int32_t>(product)];
}

// out += (x A^T) B^T in panels [panel, panel + panels) of the product's matrix with number `part`.
void Decoder::raise(const Low& low, int32_t panel, int32_t panels, float* out, int64_t stride) const {
  for (const Run& run : runs_) {
    const LowRank& pair = low_rank(run, low.layer, low.product);
    const Matrix& up = pair.up[low.part];
    if (up.rows == 0) continue;
    Activations from{};
    from.values = const_cast<float*>(low.values) + int64_t{run.first} * most_rank_;
    from.padded = pair.down.rows;
    kernels_->linear(up, from, 0, run.tokens, panel, panels, Epilogue::kAdd, out + int64_t{run.first} * stride, stride);
  }
}

// Panels of a product with what adapters add; gates come after that.
void Decoder::multiply_adapted(const Matrix& matrix, const Activations& x, int32_t rows, int32_t panel, int32_t panels,
                               Epilogue epilogue, float* out, int64_t stride, const Low& low) const {
  if (!is_gated(epilogue)) {
    kernels_->linear(matrix, x, 0, rows, panel, panels, epilogue, out, stride);
    raise(low, panel, panels, out, stride);
    return;
  }
  const int64_t width = 2 * int64_t{inner_width_};
  kernels_->linear(matrix, x, 0, rows, panel, panels, Epilogue::kStore, wide_, width);
  raise(low, panel, panels, wide_, width);
  for (int32_t row = 0; row < rows; ++row) {
    kernels_->gate(epilogue, wide_ + row * width + int64_t{panel} * panel_rows(), panels / 2,
                   out + row * stride + int64_t{panel} / 2 * panel_rows());
  }
}

}  // namespace edgewise
