// Attention over pages, a tile of keys at a time (flash decoding: Dao et al. 2023), and the sum of tiles.
//
// A tile is worked on page by page: scores of 16 keys in the 16 lanes, for all rows of a block of query rows, so that a page is
// taken apart once. Then softmax of each row over what it sees of the tile, then weights times values.
//
// Pages in int8: queries and weights are rounded to 15 or 16 bits by row, and all products are integers, so sums are exact in any
// order; what is lost against float64 over the same pages is of the order of 1e-5 of a row. Other pages: converted to float32;
// the order of additions is the same for every row. Masked keys add exact zeros to integers and nothing to floats, so it does not
// matter where a tile ends for the other rows, nor what it holds that a row does not see.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

constexpr float kQueryLevels = 127 * 256;  // high and low byte both fit a signed byte
constexpr float kWeightLevels = 32767;
constexpr float kLeastWeight = 1e-30f;     // of a row's largest: its reciprocal must stay finite

// Rounded query rows of a block.
struct Queries {
  uint8_t* codes;        // [rows, padded] 16-bit numbers in the order that the instruction set wants
  float* scales;         // [rows]: score = dot of codes * this * the key's scale
  int32_t* corrections;  // [rows]: where dots start
};

// What a page's scores fetch into the second cache meanwhile, a few lines at a time: more at once than the processor has places
// for misses would hold up everything behind them.
struct Ahead {
  const int8_t* keys;    // of a later page
  const int8_t* values;  // of this page
};
constexpr int kPagesAhead = 3;

EDGEWISE_INLINE void fetch(const int8_t* from) { __builtin_prefetch(from, 0, 2); }

template <int kRows>
struct Rows {
  static constexpr int kCount = kRows;
};

// some(Rows<n>(), row) for all of `rows`, four at a time and then those that are left.
template <typename Some>
EDGEWISE_INLINE void in_fours(int rows, Some&& some) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) some(Rows<4>(), row);
  if (rows - row == 3) some(Rows<3>(), row);
  if (rows - row == 2) some(Rows<2>(), row);
  if (rows - row == 1) some(Rows<1>(), row);
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise

#if defined(EDGEWISE_ISA_AVX512)
#include "attention_avx512.inc.h"
#include "attention_runs.inc.h"
#elif defined(EDGEWISE_ISA_AVX2)
#include "attention_avx2.inc.h"
#include "attention_runs.inc.h"
#elif defined(EDGEWISE_ISA_NEON)
#include "attention_neon.inc.h"
#include "attention_runs.inc.h"
#else
#include "attention_generic.inc.h"
#endif

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// Key positions [from, to) of a tile, from its first on.
struct Span {
  int from, to;
};

// One call's tile, and its scratch (attend_scratch says how much).
struct Tile {
  const KVPages& kv;
  const AttentionTile& task;
  int32_t padded;      // head_dim in whole groups of 32
  Queries queries;       // int8 pages
  float* floats;         // [rows, padded], other pages: scaled queries
  float* scores;         // [rows, kTileTokens], in the end weights
  uint8_t* weights;      // [rows, kTileTokens] 16-bit numbers, int8 pages
  float* weight_scales;  // [rows]
  float* sums;           // [rows, padded], other pages: weights times values
  float* value_scales;   // [kTileTokens]
  float* page;           // [2, 16, padded], a page of keys or values made wider
  int8_t* values;        // [kTileTokens, head_dim in whole runs of 64]

  Tile(const KVPages& kv_pages, const AttentionTile& tile, float* scratch)
      : kv(kv_pages), task(tile), padded((kv_pages.head_dim + 31) / 32 * 32) {
    const int64_t rows = attend_rows(task.group), runs = (kv.head_dim + 63) / 64;
    // a call works with integers or with floats: they share places
    floats = scratch;
    queries.codes = reinterpret_cast<uint8_t*>(scratch);
    scratch += rows * padded;
    sums = scratch;
    weights = reinterpret_cast<uint8_t*>(scratch);
    scratch += rows * (padded > kTileTokens / 2 ? padded : kTileTokens / 2);
    scores = scratch;
    scratch += rows * kTileTokens;
    value_scales = scratch;
    scratch += kTileTokens;
    page = scratch;
    scratch += 2 * kPageTokens * padded;
    values = reinterpret_cast<int8_t*>(scratch);
    scratch += runs * 64 * kTileTokens / 4;
    queries.scales = scratch;
    queries.corrections = reinterpret_cast<int32_t*>(scratch + rows);
    weight_scales = scratch + 2 * rows;
  }

  int32_t head_dim() const { return kv.head_dim; }
  // where the rows of a page of this tile lie in the pool: row = token of a KV head
  int64_t pool_row(int page_of_tile) const {
    return (static_cast<int64_t>(task.pages[task.first / kPageTokens + page_of_tile]) * kv.kv_heads + task.kv_head) * kPageTokens;
  }
  Span seen(int32_t token) const {
    const int64_t from = task.window > 0 ? task.positions[token] - task.window + 1 - task.first : 0;
    const int64_t to = (task.visible[token] + 1 < task.end ? task.visible[token] + 1 : task.end) - task.first;
    if (to <= 0 || from >= to) return {0, 0};
    return {from > 0 ? static_cast<int>(from) : 0, static_cast<int>(to)};
  }
};

// ------------------------------------------------------------------ queries

const float* query_row(const Tile& tile, int32_t token, int head) {
  return tile.task.q + token * tile.task.token_stride + static_cast<int64_t>(head) * tile.head_dim();
}

EDGEWISE_INLINE Floats load_query(const float* from, int32_t at, int32_t head_dim) {
  const int32_t left = head_dim - at;
  return left <= 0 ? splat(0.0f) : load_part(from + at, left < kLanes ? left : kLanes);
}

// Rounds a query to 16 bits. A number less itself is 0, or NaN if it is infinite or NaN: then the scale is NaN, and all scores.
void round_query(const Tile& tile, const float* from, int row) {
  const int32_t head_dim = tile.head_dim();
  Floats largest = splat(0.0f), fault = splat(0.0f);
  for (int32_t at = 0; at < head_dim; at += kLanes) {
    const Floats part = load_query(from, at, head_dim);
    largest = max(largest, abs(part));
    fault = fault + (part - part);
  }
  const float most = maximum(largest);
  const Floats levels = splat(most > kLeastWeight ? kQueryLevels / most : 0.0f);
  Ints total = splat_int(0);
  for (int32_t at = 0; at < tile.padded; at += kLanes) {
    const Ints codes = round(load_query(from, at, head_dim) * levels);
    total = total + codes;
    store_query(tile.queries.codes + static_cast<int64_t>(row) * 2 * tile.padded, tile.padded, at, codes);
  }
  tile.queries.scales[row] = (most / kQueryLevels + sum(fault)) * tile.task.scale;
  tile.queries.corrections[row] = query_correction(sum_ints(total));
}

void scale_query(const Tile& tile, const float* from, int row) {
  float* to = tile.floats + static_cast<int64_t>(row) * tile.padded;
  for (int32_t at = 0; at < tile.padded; at += kLanes) {
    store(to + at, load_query(from, at, tile.head_dim()) * splat(tile.task.scale));
  }
}

// ------------------------------------------------------------------ pages that are not int8

EDGEWISE_INLINE Floats load_fp8(const uint8_t* from) {
  float each[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    // exponent and fraction in their places of a float32, whose bias is larger by 120
    const uint32_t rest = from[i] & 0x7fu, bits = rest << 20;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    x *= 0x1p120f;
    x = rest == 0x7fu ? NAN : x;
    each[i] = (from[i] & 0x80u) != 0 ? -x : x;
  }
  return load(each);
}

template <KVFormat kFormat>
EDGEWISE_INLINE Floats load_stored(const uint8_t* from, int count) {
  constexpr int kBytes = kFormat == KVFormat::kFloat32 ? 4 : kFormat == KVFormat::kFp8 ? 1 : 2;
  uint8_t part[kLanes * kBytes] = {};
  if (count < kLanes) {
    std::memcpy(part, from, static_cast<size_t>(count * kBytes));
    from = part;
  }
  if constexpr (kFormat == KVFormat::kFloat32) return load(reinterpret_cast<const float*>(from));
  if constexpr (kFormat == KVFormat::kBFloat16) return load_bfloat16(reinterpret_cast<const uint16_t*>(from));
  if constexpr (kFormat == KVFormat::kFloat16) return load_float16(reinterpret_cast<const uint16_t*>(from));
  return load_fp8(from);
}

// A page's keys or values as floats [16, padded], zeros beyond head_dim and beyond `tokens`.
template <KVFormat kFormat>
void widen_page(const void* pool, int64_t row, int32_t head_dim, int32_t padded, int tokens, float* to) {
  constexpr int kBytes = kFormat == KVFormat::kFloat32 ? 4 : kFormat == KVFormat::kFp8 ? 1 : 2;
  for (int token = 0; token < kPageTokens; ++token, to += padded) {
    const uint8_t* from = static_cast<const uint8_t*>(pool) + (row + token) * head_dim * kBytes;
    for (int32_t at = 0; at < padded; at += kLanes) {
      const int32_t left = head_dim - at;
      const bool nothing = left <= 0 || token >= tokens;
      store(to + at, nothing ? splat(0.0f) : load_stored<kFormat>(from + at * kBytes, left < kLanes ? left : kLanes));
    }
  }
}

void widen(const Tile& tile, const void* pool, int64_t row, int tokens, float* to) {
  switch (tile.kv.format) {
    case KVFormat::kFloat32:
      return widen_page<KVFormat::kFloat32>(pool, row, tile.head_dim(), tile.padded, tokens, to);
    case KVFormat::kBFloat16:
      return widen_page<KVFormat::kBFloat16>(pool, row, tile.head_dim(), tile.padded, tokens, to);
    case KVFormat::kFloat16:
      return widen_page<KVFormat::kFloat16>(pool, row, tile.head_dim(), tile.padded, tokens, to);
    case KVFormat::kFp8:
      return widen_page<KVFormat::kFp8>(pool, row, tile.head_dim(), tile.padded, tokens, to);
    case KVFormat::kInt8:
      return;  // has its own products
  }
}

void score_floats(const Tile& tile, int page, int rows) {
  const int64_t pool_row = tile.pool_row(page);
  float *wide = tile.page, *turned = tile.page + kPageTokens * tile.padded;
  widen(tile, tile.kv.k, pool_row, kPageTokens, wide);
  for (int32_t at = 0; at < tile.padded; at += kLanes) transpose(wide + at, tile.padded, turned + at * kLanes);
  const Floats scales = tile.kv.k_scale != nullptr ? load(tile.kv.k_scale + pool_row) : splat(1.0f);
  for (int row = 0; row < rows; ++row) {
    const float* query = tile.floats + static_cast<int64_t>(row) * tile.padded;
    Floats dots[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};  // four sums: an addition need not wait for the last
    for (int32_t at = 0; at < tile.padded; at += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) dots[i] = fma(splat(query[at + i]), load(turned + (at + i) * kLanes), dots[i]);
    }
    store(tile.scores + static_cast<int64_t>(row) * kTileTokens + page * kPageTokens,
          ((dots[0] + dots[1]) + (dots[2] + dots[3])) * scales);
  }
}

// Adds weights times values of a page's tokens to the rows of query tokens from `first` on. Each row takes what it sees, no more:
// a value that is NaN or infinite would come through a weight of 0.
void mix_floats(const Tile& tile, int32_t first, int page, int rows, int tokens) {
  widen(tile, tile.kv.v, tile.pool_row(page), tokens, tile.page);
  const int key = page * kPageTokens;
  for (int row = 0; row < rows; ++row) {
    const Span seen = tile.seen(first + row / tile.task.group);
    const int from = seen.from > key ? seen.from - key : 0, to = seen.to - key < tokens ? seen.to - key : tokens;
    const float* weights = tile.scores + static_cast<int64_t>(row) * kTileTokens + key;
    float* sums = tile.sums + static_cast<int64_t>(row) * tile.padded;
    for (int32_t at = 0; at < tile.padded; at += 2 * kLanes) {
      Floats a = load(sums + at), b = load(sums + at + kLanes);
      for (int token = from; token < to; ++token) {
        const float* values = tile.page + token * tile.padded + at;
        const Floats weight = splat(weights[token]);
        a = fma(weight, load(values), a);
        b = fma(weight, load(values + kLanes), b);
      }
      store(sums + at, a);
      store(sums + at + kLanes, b);
    }
  }
}

// ------------------------------------------------------------------ softmax

// `x` in the lanes that lie in `seen`, where lane 0 is key `key`; `other` in the rest.
EDGEWISE_INLINE Floats where_seen(Span seen, int key, Floats x, float other) {
  if (key >= seen.from && key + kLanes <= seen.to) return x;
  const int to = seen.to - key < kLanes ? seen.to - key : kLanes, from = seen.from > key ? seen.from - key : 0;
  return select(first_lanes(from), splat(other), select(first_lanes(to), x, splat(other)));
}

// `exp` for numbers that are not positive: the same bits in two thirds of the time.
EDGEWISE_INLINE Floats power(Floats x) {
  const Floats low = splat(-87.33654f), bounded = max(low, x);
  const Ints n = nearest_power(bounded);
  return select(less(x, low), splat(0.0f), rest_of_power(bounded, n) * power_of_two(n));
}

// Of a row's weights.
struct Weights {
  float largest, fault;  // fault: 0, or NaN if a weight is NaN or infinite
};

// Scores of what a row sees -> e^(score - largest) times the scale of the value; writes the largest score and the sum of powers.
Weights softmax(const Tile& tile, Span seen, float* scores, float* largest_out, float* sum_out) {
  const int first = seen.from / kLanes * kLanes;
  Floats largest = splat(-INFINITY);
  for (int key = first; key < seen.to; key += kLanes) {
    Floats x = load(scores + key);
    if (tile.task.softcap > 0.0f) x = tanh(x / splat(tile.task.softcap)) * splat(tile.task.softcap);
    x = where_seen(seen, key, x, -INFINITY);
    store(scores + key, x);
    largest = max(largest, x);
  }
  const float most = maximum(largest);
  Floats total = splat(0.0f), heaviest = total, fault = total;
  for (int key = first; key < seen.to; key += kLanes) {
    const Floats e = power(load(scores + key) - splat(most));
    const Floats weight = where_seen(seen, key, e * load(tile.value_scales + key), 0.0f);
    store(scores + key, weight);
    total = total + e;
    heaviest = max(heaviest, weight);
    fault = fault + (weight - weight);
  }
  *largest_out = most;
  *sum_out = sum(total);
  return {maximum(heaviest), sum(fault)};
}

// Weights of a row to 15 bits, zeros in the rest of keys [block.from, block.to).
void round_weights(const Tile& tile, Span seen, Span block, Weights weights, int row) {
  const float* scores = tile.scores + static_cast<int64_t>(row) * kTileTokens;
  uint8_t* to = tile.weights + static_cast<int64_t>(row) * 2 * kTileTokens;
  const int first = seen.from / kLanes * kLanes;
  const Floats levels = splat(weights.largest > kLeastWeight ? kWeightLevels / weights.largest : 0.0f);
  for (int key = block.from; key < block.to; key += kLanes) {
    const bool empty = key < first || key >= seen.to;
    store_weights(to, key, empty ? splat_int(0) : round(load(scores + key) * levels));
  }
  tile.weight_scales[row] = weights.largest / kWeightLevels + weights.fault;
}

// ------------------------------------------------------------------ a block of rows

// Scores of an int8 page. `last` is the last key of the sequence that some row sees, in this tile or a later one.
void score_integers(const Tile& tile, int page, int rows, int64_t last) {
  const int8_t *keys = static_cast<const int8_t*>(tile.kv.k), *values = static_cast<const int8_t*>(tile.kv.v);
  const int64_t row = tile.pool_row(page);
  Ahead ahead = {keys + row * tile.head_dim(), values + row * tile.head_dim()};
  const int later = page + kPagesAhead;
  if (later * kPageTokens <= last) {
    const int64_t later_row = tile.pool_row(later);
    ahead.keys = keys + later_row * tile.head_dim();
    __builtin_prefetch(tile.kv.k_scale + later_row, 0, 2);
    __builtin_prefetch(tile.kv.v_scale + later_row, 0, 2);
  }
  score_page(keys + row * tile.head_dim(), tile.head_dim(), tile.padded, tile.kv.k_scale + row, tile.queries, rows,
             reinterpret_cast<uint8_t*>(tile.page), ahead, tile.scores + page * kPageTokens);
}

void score_block(const Tile& tile, Span block, int rows, int64_t last) {
  for (int page = block.from / kPageTokens; page * kPageTokens < block.to; ++page) {
    if (tile.kv.format == KVFormat::kInt8) {
      score_integers(tile, page, rows, last);
    } else {
      score_floats(tile, page, rows);
    }
  }
}

void mix_block(const Tile& tile, int32_t token, Span block, int rows, float* out) {
  const int32_t head_dim = tile.head_dim();
  const int first = block.from / kPageTokens * kPageTokens;
  if (tile.kv.format == KVFormat::kInt8) {
    for (int key = first; key < block.to; key += kPageTokens) {
      const int page = key / kPageTokens;
      pack_values(static_cast<const int8_t*>(tile.kv.v) + tile.pool_row(page) * head_dim, head_dim, page, tile.values);
    }
    const int last = (block.to + kPageTokens - 1) / kPageTokens * kPageTokens;
    mix_values(tile.values, head_dim, tile.weights, tile.weight_scales, rows, first, last, out);
    return;
  }
  std::memset(tile.sums, 0, sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(tile.padded));
  for (int key = first; key < block.to; key += kPageTokens) {
    mix_floats(tile, token, key / kPageTokens, rows, block.to - key < kPageTokens ? block.to - key : kPageTokens);
  }
  for (int row = 0; row < rows; ++row) {
    std::memcpy(out + static_cast<int64_t>(row) * head_dim, tile.sums + static_cast<int64_t>(row) * tile.padded,
                sizeof(float) * static_cast<size_t>(head_dim));
  }
}

// Query tokens [token, token + tokens), all heads of the group.
void attend_block(const Tile& tile, int32_t token, int32_t tokens, const Partial& out) {
  const int group = tile.task.group, rows = tokens * group;
  const int64_t at = static_cast<int64_t>(token) * group;
  Span block = {kTileTokens, 0};  // what some row sees
  int64_t last = 0;
  for (int i = 0; i < tokens; ++i) {
    const Span seen = tile.seen(token + i);
    const int64_t visible = tile.task.visible[token + i] - tile.task.first;
    last = visible > last ? visible : last;
    if (seen.to == 0) continue;
    if (seen.from < block.from) block.from = seen.from;
    if (seen.to > block.to) block.to = seen.to;
  }
  if (block.to == 0) block.from = 0;
  const bool integers = tile.kv.format == KVFormat::kInt8;
  for (int row = 0; row < rows; ++row) {
    const float* from = query_row(tile, token + row / group, row % group);
    integers ? round_query(tile, from, row) : scale_query(tile, from, row);
  }
  score_block(tile, block, rows, last);
  const Span pages = {block.from / kPageTokens * kPageTokens, (block.to + kPageTokens - 1) / kPageTokens * kPageTokens};
  for (int row = 0; row < rows; ++row) {
    const Span seen = tile.seen(token + row / group);
    float* scores = tile.scores + static_cast<int64_t>(row) * kTileTokens;
    const Weights weights = softmax(tile, seen, scores, out.maxima + at + row, out.sums + at + row);
    if (integers) round_weights(tile, seen, pages, weights, row);
  }
  mix_block(tile, token, block, rows, out.values + at * tile.head_dim());
}

void attend(const KVPages& kv, const AttentionTile& task, float* scratch, const Partial& out) {
  const Tile tile(kv, task, scratch);
  const int pages = (task.end - task.first + kPageTokens - 1) / kPageTokens;
  for (int page = 0; page < pages; ++page) {
    store(tile.value_scales + page * kPageTokens, kv.v_scale != nullptr ? load(kv.v_scale + tile.pool_row(page)) : splat(1.0f));
  }
  const int32_t step = attend_rows(task.group) / task.group;
  for (int32_t token = 0; token < task.tokens; token += step) {
    attend_block(tile, token, task.tokens - token < step ? task.tokens - token : step, out);
  }
}

// ------------------------------------------------------------------ tiles joined

// A row's tiles lie `rows` apart. Tiles of which it saw nothing (largest -inf, sum 0) have the factor 0.
void merge_row(const Partial& part, int64_t row, int64_t rows, int32_t tiles, int32_t head_dim, float* out) {
  float most = -INFINITY;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const float own = part.maxima[tile * rows + row];
    most = own > most || own != own ? own : most;
  }
  std::memset(out, 0, sizeof(float) * static_cast<size_t>(head_dim));
  Floats total = splat(0.0f);
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int64_t place = tile * rows + row;
    if (part.maxima[place] == -INFINITY && part.sums[place] == 0.0f) continue;
    const Floats factor = exp(splat(part.maxima[place] - most));
    total = total + splat(part.sums[place]) * factor;
    for (int32_t at = 0; at < head_dim; at += kLanes) {
      const int count = head_dim - at < kLanes ? head_dim - at : kLanes;
      const Floats values = load_part(part.values + place * head_dim + at, count) * factor;
      store_part(out + at, load_part(out + at, count) + values, count);
    }
  }
  for (int32_t at = 0; at < head_dim; at += kLanes) {
    const int count = head_dim - at < kLanes ? head_dim - at : kLanes;
    store_part(out + at, load_part(out + at, count) / total, count);
  }
}

void merge(const Partial& part, int32_t tiles, int32_t tokens, int32_t group, int32_t head_dim, float* out, int64_t token_stride) {
  const int64_t rows = static_cast<int64_t>(tokens) * group;
  for (int64_t row = 0; row < rows; ++row) {
    merge_row(part, row, rows, tiles, head_dim, out + row / group * token_stride + row % group * head_dim);
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
