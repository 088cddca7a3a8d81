// Feed-forward blocks of which each token uses some (kernels/experts.py); part of Decoder, apart for its length.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "packing.h"
#include "runtime.h"
#include "step.h"
#include "step.inc.h"

namespace edgewise {

void Decoder::feed_experts(Worker& me, const LayerWeights& weights) {
  const int32_t rows = batch_.tokens, hidden = shape_.hidden, pairs = rows * shape_.per_token;
  const Activations normed = prepared(me, rows, hidden, [&](const Activations& out, int32_t row) {
    const float* x = x_ + int64_t{row} * hidden;
    kernels_->norm_prepare(x, hidden, 1, hidden, weights.ffn_norm, shape_.eps, weights.router.format, out, row);
    if (weights.experts->format != weights.router.format) {
      kernels_->norm_prepare(x, hidden, 1, hidden, weights.ffn_norm, shape_.eps, weights.experts->format, out, row);
    }
  });
  multiply(me, weights.router, normed, rows, Epilogue::kStore, routes_, route_width_, {});
  pool().barrier();
  split_rows(me, rows, [&](int32_t row) { route(me, row); });
  pool().barrier();
  if (me.index == 0) order_by_expert();
  pool().barrier();
  Activations taken = pairs_;
  taken.padded = normed.padded;
  split_rows(me, pairs, [&](int32_t pair) { gather(normed, pair / shape_.per_token, taken, place_of_[pair]); });
  pool().barrier();
  multiply_experts(me, weights, 0, taken, shape_.gelu ? Epilogue::kGeluMul : Epilogue::kSiluMul, inner_, expert_width_);
  pool().barrier();
  taken.padded = (shape_.expert_ffn + kGroup - 1) / kGroup * kGroup;
  split_rows(me, pairs, [&](int32_t place) {
    kernels_->prepare(inner_ + int64_t{place} * expert_width_, expert_width_, 1, shape_.expert_ffn, weights.experts[1].format, taken,
                      place);
  });
  pool().barrier();
  multiply_experts(me, weights, 1, taken, Epilogue::kStore, expert_out_, hidden);
  pool().barrier();
  split_rows(me, rows, [&](int32_t row) { mix(weights, row); });
  pool().barrier();
}

// The likeliest experts of a token, of equal ones the first, and their probabilities.
void Decoder::route(Worker& me, int32_t row) {
  float* scores = routes_ + int64_t{row} * route_width_;
  const int32_t count = shape_.experts, wanted = shape_.per_token;
  const float most = *std::max_element(scores, scores + count);
  float total = 0.0f;
  for (int32_t i = 0; i < count; ++i) total += scores[i] = std::exp(scores[i] - most);
  int32_t* chosen = chosen_.data() + int64_t{row} * wanted;
  float* shares = share_of_.data() + int64_t{row} * wanted;
  std::vector<int32_t>& order = me.order;
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + wanted, order.end(),
                    [&](int32_t a, int32_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
  float sum = 0.0f;
  for (int32_t i = 0; i < wanted; ++i) sum += scores[order[i]] / total;
  std::sort(order.begin(), order.begin() + wanted);
  for (int32_t i = 0; i < wanted; ++i) {
    chosen[i] = order[i];
    shares[i] = scores[order[i]] / total / (shape_.normalised ? sum : 1.0f);
  }
}

void Decoder::order_by_expert() {
  std::fill(begin_of_.begin(), begin_of_.end(), 0);
  for (int32_t expert : chosen_) ++begin_of_[expert + 1];
  for (int32_t expert = 0; expert < shape_.experts; ++expert) begin_of_[expert + 1] += begin_of_[expert];
  std::copy(begin_of_.begin(), begin_of_.end() - 1, next_of_.begin());
  for (size_t pair = 0; pair < chosen_.size(); ++pair) place_of_[pair] = next_of_[chosen_[pair]]++;
}

void Decoder::gather(const Activations& from, int32_t row, const Activations& to, int32_t place) const {
  const int64_t width = from.padded, groups = width / kGroup;
  const auto copy = [&](auto* source, auto* target, int64_t count) {
    if (target != nullptr) std::memcpy(target + place * count, source + row * count, sizeof(*source) * count);
  };
  copy(from.values, to.values, width);
  const auto copy_codes = [&](const RoundedRows& source, const RoundedRows& target) {
    copy(source.codes, target.codes, width);
    copy(source.scales, target.scales, groups);
    copy(source.sums, target.sums, groups);
    copy(source.totals, target.totals, groups);
    copy(source.halves, target.halves, 2 * groups);
  };
  copy_codes(from.coarse, to.coarse);
  copy_codes(from.fine, to.fine);
}

// Of all experts that have tokens: rows of a product that lie expert by expert. `which` 0: gate and up, 1: down.
void Decoder::multiply_experts(Worker& me, const LayerWeights& weights, int which, const Activations& x, Epilogue epilogue,
                               float* out, int64_t stride) {
  const int32_t unit = epilogue == Epilogue::kStore ? 1 : 2;
  const int32_t units = (weights.experts[which].rows + panel_rows() * unit - 1) / (panel_rows() * unit);
  const int32_t chunk = std::max(1, units / threads_), chunks = (units + chunk - 1) / chunk;
  share(me, shape_.experts * chunks, [&](int32_t item) {
    const int32_t expert = item / chunks, first = item % chunks * chunk;
    const int32_t row = begin_of_[expert], rows = begin_of_[expert + 1] - row;
    if (rows == 0) return;
    const Matrix& matrix = weights.experts[2 * expert + which];
    kernels_->linear(matrix, x, row, rows, first * unit, std::min(chunk, units - first) * unit, epilogue, out, stride);
  });
}

// A token's experts are added in ascending order.
void Decoder::mix(const LayerWeights& weights, int32_t row) {
  const int32_t hidden = shape_.hidden;
  float* branch = branch_ + int64_t{row} * hidden;
  std::fill(branch, branch + hidden, 0.0f);
  for (int32_t i = 0; i < shape_.per_token; ++i) {
    const int64_t pair = int64_t{row} * shape_.per_token + i;
    const float* result = expert_out_ + int64_t{place_of_[pair]} * hidden;
    for (int32_t col = 0; col < hidden; ++col) branch[col] += share_of_[pair] * result[col];
  }
  if (weights.ffn_post_norm != nullptr) kernels_->rms_norm(branch, weights.ffn_post_norm, shape_.eps, hidden, branch);
  float* x = x_ + int64_t{row} * hidden;
  for (int32_t col = 0; col < hidden; ++col) x[col] += branch[col];
}

}  // namespace edgewise
