// What a step refuses; part of Decoder, apart for its length.
#include <algorithm>

#include "step.h"

namespace edgewise {

Fault Decoder::check(const Batch& batch, const KVPages* kv) const {
  int64_t pages = kv[0].pages;
  for (int32_t i = 0; i < shape_.layers; ++i) {
    if (kv[i].kv_heads != shape_.kv_heads || kv[i].head_dim != shape_.head_dim) return Fault::kPages;
    pages = std::min<int64_t>(pages, kv[i].pages);
  }
  const Layout layout{batch.tokens,  batch.sequences,    batch.table_width, batch.positions,
                      batch.visible, batch.block_tables, batch.query_lens};
  Fault fault = check_layout(layout, narrowest_, pages);
  if (fault == Fault::kNone) fault = check_slots(batch.slots, batch.tokens, pages);
  if (fault != Fault::kNone) return fault;
  for (int32_t i = 0; i < batch.tokens; ++i) {
    if (batch.ids[i] < 0 || batch.ids[i] >= shape_.vocab) return Fault::kToken;
    for (const RopeTable& table : ropes_) {
      for (int32_t axis = 0; axis < (batch.rope_positions == nullptr ? 0 : 3); ++axis) {
        const int64_t position = batch.rope_positions[int64_t{axis} * batch.tokens + i];
        if (position < 0 || position >= table.positions) return Fault::kRopePosition;
      }
      if (batch.rope_positions == nullptr && batch.positions[i] >= table.positions) return Fault::kRopePosition;
    }
  }
  for (int32_t i = 0; i < batch.media_count; ++i) {
    if (batch.media_rows[i] < 0 || batch.media_rows[i] >= batch.tokens) return Fault::kMedia;
  }
  for (int32_t i = 0; batch.adapter_of != nullptr && i < batch.tokens; ++i) {
    if (batch.adapter_of[i] < -1 || batch.adapter_of[i] >= batch.adapter_count) return Fault::kAdapter;
  }
  return Fault::kNone;
}

}  // namespace edgewise
