// How Decoder's parts share work; included by the files that implement it.
#pragma once

#include "runtime.h"
#include "step.h"

namespace edgewise {

// Calls work(item) for the items that this thread gets; every thread meets the shared phases in the same order.
template <class Work>
void Decoder::share(Worker& me, int32_t items, Work work) {
  std::atomic<int32_t>& next = counters_[me.phase++].next;
  for (int32_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) work(item);
}

template <class Work>
void Decoder::split_rows(const Worker& me, int32_t rows, Work work) const {
  const int32_t last = static_cast<int32_t>(int64_t{rows} * (me.index + 1) / threads_);
  for (int32_t row = static_cast<int32_t>(int64_t{rows} * me.index / threads_); row < last; ++row) work(row);
}

// Activations of all rows of `cols` columns, made by one(activations, row) for each.
template <class Prepare>
Activations Decoder::prepared(const Worker& me, int32_t rows, int32_t cols, Prepare one) const {
  Activations out = small_ ? me.own : shared_;
  out.padded = (cols + kGroup - 1) / kGroup * kGroup;
  if (small_) {
    for (int32_t row = 0; row < rows; ++row) one(out, row);
  } else {
    split_rows(me, rows, [&](int32_t row) { one(out, row); });
    pool().barrier();
  }
  return out;
}

}  // namespace edgewise
