#include "plan.h"

#include <algorithm>

namespace edgewise {
namespace {

constexpr int64_t kGroupFloats = int64_t{1} << 18;  // of partial results of a group, which should stay in a core's cache
constexpr int32_t kGroupsPerThread = 4;         // fewer groups are split into tiles, or threads would wait for the last one

int32_t tiles_to(int64_t end) { return static_cast<int32_t>((end + kTileTokens - 1) / kTileTokens); }

int64_t last_seen(const Batch& batch, int32_t token) {
  return batch.visible == nullptr ? batch.positions[token] : batch.visible[token];
}

// Tokens of a block whose partial results, one for each tile, are not too many.
int32_t block_tokens(int64_t context, int32_t group, int32_t head_dim) {
  const int64_t token_floats = int64_t{tiles_to(context)} * group * (head_dim + 2);
  return static_cast<int32_t>(std::clamp<int64_t>(kGroupFloats / token_floats, 1, attend_rows(group) / group));
}

void add_block(const Batch& batch, int32_t sequence, int32_t first, int32_t tokens, int32_t window, int32_t kv_heads, Plan* plan) {
  int64_t begin = batch.positions[first], end = 0;
  for (int32_t token = first; token < first + tokens; ++token) {
    begin = std::min(begin, batch.positions[token]);
    end = std::max(end, last_seen(batch, token) + 1);
  }
  begin = window == 0 ? 0 : std::max<int64_t>(0, begin - window + 1);
  Group one{sequence, first, tokens, 0, static_cast<int32_t>(begin / kTileTokens), 0, static_cast<int32_t>(end), 0};
  one.tiles = tiles_to(end) - one.tile;
  for (; one.kv_head < kv_heads; ++one.kv_head) plan->groups.push_back(one);
}

}  // namespace


void make_plan(const Batch& batch, int32_t window, int32_t kv_heads, int32_t group, int32_t head_dim, int threads, Plan* plan) {
  plan->groups.clear();
  plan->items.clear();
  for (int32_t sequence = 0, first = 0; sequence < batch.sequences; first += batch.query_lens[sequence++]) {
    const int32_t count = batch.query_lens[sequence];
    const int32_t step = block_tokens(batch.positions[first + count - 1] + 1, group, head_dim);
    for (int32_t token = 0; token < count; token += step) {
      add_block(batch, sequence, first + token, std::min(step, count - token), window, kv_heads, plan);
    }
  }
  std::vector<Group>& groups = plan->groups;
  const auto work = [](const Group& one) { return int64_t{one.tokens} * one.tiles; };
  std::stable_sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) { return work(a) > work(b); });
  plan->shared_rows = plan->own_rows = 0;
  for (Group& one : groups) {
    one.row = plan->shared_rows;
    plan->shared_rows += work(one) * group;
    plan->own_rows = std::max(plan->own_rows, work(one) * group);
  }
  plan->split = threads > 1 && static_cast<int64_t>(groups.size()) < int64_t{kGroupsPerThread} * threads;
  for (int32_t index = 0; index < static_cast<int32_t>(groups.size()); ++index) {
    if (!plan->split) {
      plan->items.push_back({index, -1});
      continue;
    }
    for (int32_t tile = 0; tile < groups[index].tiles; ++tile) plan->items.push_back({index, tile});
  }
}

}  // namespace edgewise
