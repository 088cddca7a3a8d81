#include "bounds.h"

#include <algorithm>

namespace edgewise {
namespace {

// Whether all numbers are in [0, limit); no early end, so that loops become vectors.
template <class Number>
bool all_below(const Number* numbers, int64_t count, int64_t limit) {
  bool outside = false;
  for (int64_t i = 0; i < count; ++i) outside |= numbers[i] < 0 || numbers[i] >= limit;
  return !outside;
}

}  // namespace

Fault check_layout(const Layout& batch, int32_t window, int64_t pages) {
  int64_t tokens = 0;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.query_lens[i] < 1) return Fault::kLengths;
    tokens += batch.query_lens[i];
  }
  if (tokens != batch.tokens || tokens < 1) return Fault::kLengths;
  const int64_t positions = int64_t{batch.table_width} * kPageTokens;
  if (!all_below(batch.positions, tokens, positions)) return Fault::kPosition;
  const int64_t* seen = batch.visible == nullptr ? batch.positions : batch.visible;
  if (batch.visible != nullptr) {
    if (!all_below(seen, tokens, positions)) return Fault::kVisible;
    for (int64_t i = 0; window > 0 && i < tokens; ++i) {
      if (seen[i] <= batch.positions[i] - window) return Fault::kVisible;
    }
  }
  for (int32_t i = 0; i < batch.sequences; seen += batch.query_lens[i++]) {
    const int64_t last = *std::max_element(seen, seen + batch.query_lens[i]);
    const int32_t* table = batch.block_tables + int64_t{i} * batch.table_width;
    if (!all_below(table, last / kPageTokens + 1, pages)) return Fault::kTable;
  }
  return Fault::kNone;
}

Fault check_slots(const int64_t* slots, int64_t tokens, int64_t pages) {
  return all_below(slots, tokens, pages * kPageTokens) ? Fault::kNone : Fault::kSlot;
}

}  // namespace edgewise
