// Which parts a step's attention falls into.
//
// Query tokens of one sequence are taken in blocks, a block with one KV head is a `Group`: it meets the key positions in tiles of
// kTileTokens, and the tiles' partial results are merged in order. Neither the size of a block nor who computes which tile
// changes a result.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace edgewise {

// An adapter's part of a layer's product: up times down. Floats; no rows in what it does not change. `up` has the rows of the
// product's matrices: of one, or of queries, keys and values.
struct LowRank {
  Matrix down;  // [rank, in]
  Matrix up[3];  // [rows, rank]
};

// A ragged batch, sequence after sequence; as kernels/paging.py:AttentionMeta.
struct Batch {
  int32_t tokens, sequences;
  const int64_t* ids;             // [tokens]
  const int64_t* positions;       // [tokens]
  const int64_t* rope_positions;  // [3, tokens], or null: `positions`
  const int64_t* visible;         // [tokens], or null: `positions`
  const int64_t* slots;           // [tokens]
  const int32_t* block_tables;    // [sequences, table_width]
  const int32_t* query_lens;      // [sequences]
  const float* media;             // [media_count, hidden]: rows in place of embeddings
  const int64_t* media_rows;      // [media_count]: which tokens they stand for
  const LowRank* const* adapters;  // [adapter_count], of each [layers, 4]: qkv, output, gate_up, down
  const int32_t* adapter_of;       // [tokens]: which, or -1; null: none
  int32_t table_width, media_count, adapter_count;
};

struct Group {
  int32_t sequence, first, tokens;  // query tokens [first, first + tokens) of the batch
  int32_t kv_head;
  int32_t tile, tiles;              // tiles [tile, tile + tiles)
  int32_t end;                      // key positions below it are seen by some token of the block
  int64_t row;                      // of its first partial result among all groups'; it has tiles * rows of them
};

struct Item {
  int32_t group, tile;  // tile -1: all of the group's, merged at once
};

// The groups of one window, and the items that threads take one by one.
struct Plan {
  std::vector<Group> groups;  // the longest first
  std::vector<Item> items;
  bool split;                 // items are single tiles; merging waits for all of them
  int64_t shared_rows;        // of partial results of all groups, if split
  int64_t own_rows;           // of partial results of the largest group
};

// `window` 0: all positions. `group` query heads share each of the `kv_heads`.
void make_plan(const Batch&, int32_t window, int32_t kv_heads, int32_t group, int32_t head_dim, int threads, Plan* plan);

}  // namespace edgewise
