// What every instruction set implements, and the data that it works on.
//
// Each function computes a part of an operation on the calling thread; step.cpp splits operations over the pool and joins them.
// Results do not depend on how an operation was split: every output is computed by one thread, in an order of additions that its
// own row, its own sequence and absolute positions alone decide. So a token's bits are the same alone and among others.
#pragma once

#include <cstdint>

namespace edgewise {

constexpr int kGroup = 32;        // columns that share a scale, in weights and in activations
constexpr int kPageTokens = 16;   // as kernels/limits.py:PAGE_TOKENS
constexpr int kTileTokens = 256;  // as kernels/limits.py:TILE_TOKENS: key positions of one partial sum of attention
constexpr int kMaxThreads = 64;

// How a packed weight is stored; numbers are part of the ABI.
enum class WeightFormat : int32_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kInt8 = 2,      // signed codes, one fp16 scale for 32 columns of a row
  kInt4 = 3,      // unsigned codes, one fp16 scale and one fp16 minimum for 32 columns (GGUF Q4_1 fits without loss)
  kInt4Even = 4,  // codes less 8, one fp16 scale for 32 columns (GGUF Q4_0 fits without loss)
  kInt8Rotated = 5,  // as kInt8, of columns that were rotated in their groups (rotation.h), as their activations are
  kInt8Min = 6,  // codes in bytes, one fp16 scale and one fp16 minimum for 32 columns (Q5_1 and Q4_1 fit)
  kInt4K = 7,    // as kInt4, but scale and minimum are an fp16 number for 256 columns times 6 bits for 32 (Q4_K fits)
  kInt8K = 8,    // the same with codes in bytes (Q5_K and Q4_K fit)
  kInt8K16 = 9,  // signed codes; the scale is an fp16 number for 256 columns times 8 bits for 16 (Q6_K fits)
};

// A weight [rows, cols] in panels (packing.cpp). Rows are padded to whole panels and columns to whole groups, with zeros.
struct Matrix {
  const uint8_t* data;
  const float* bias;  // [rows], or null
  int32_t rows, cols;
  WeightFormat format;
};

// Rows of activations rounded to int8 by groups of 32 columns.
struct RoundedRows {
  int8_t* codes;    // [rows, padded]
  float* scales;    // [rows, padded / 32]
  float* sums;      // [rows, padded / 32]: scale * sum of codes
  int32_t* totals;  // [rows, padded / 32]: sum of codes
  int32_t* halves;  // [rows, padded / 16]: sum of 16 codes; made for kInt8K16 alone
};

// Rows of activations prepared for products with a format: floats are copied, the others rounded (scale = max|x| / 127). Columns
// are padded to whole groups with zeros. A group with a NaN or an infinity has the scale NaN, so that every output of its row is
// NaN. Where a group's scale is above the root mean square of its row's, what rounding left is rounded once more: the few large
// groups make most of the error of a product. The others have a scale of zero in `fine`, and codes that are not to be read.
struct Activations {
  float* values;       // [rows, padded] for kFloat32 and kBFloat16
  RoundedRows coarse;  // for integer formats
  RoundedRows fine;    // likewise
  int32_t padded;      // columns, a multiple of 32
};

enum class Epilogue : int32_t {
  kStore = 0,     // out = product + bias
  kAdd = 1,       // out += product + bias
  kSiluMul = 2,   // rows of the matrix alternate by panels, gate then up: out = silu(gate) * up, half as wide
  kGeluMul = 3,   // the same with gelu by tanh
};

// How pages store keys and values; numbers are part of the ABI.
enum class KVFormat : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kInt8 = 3, kFp8 = 4 };

// One layer's pages, laid out as kernels/paging.py:KVLayer: [pages, kv_heads, 16, head_dim], scales [pages, kv_heads, 16].
struct KVPages {
  void* k;
  void* v;
  float* k_scale;  // null unless the format has 8 bits
  float* v_scale;
  int32_t kv_heads, head_dim;
  KVFormat format;
  int32_t pages;
};

// A tile of attention: query rows of one KV head against one run of kTileTokens key positions of one sequence.
struct AttentionTile {
  const float* q;              // [tokens, group, head_dim] by strides: query heads that share the KV head
  int64_t token_stride;        // floats from a token's first head of the group to the next token's
  int32_t tokens, group;       // rows = tokens * group
  const int64_t* positions;    // [tokens]: of each query token
  const int64_t* visible;      // [tokens]: last position that it sees
  int32_t window;              // positions that a token sees, itself included; 0 for all
  const int32_t* pages;        // block table of the sequence
  int32_t kv_head, first, end; // key positions [first, end), first a multiple of kTileTokens, end - first <= kTileTokens
  float scale, softcap;        // softcap 0: none
};

// Unnormalised partial results of tiles, added in order of position by `merge`.
struct Partial {
  float* maxima;  // [rows]
  float* sums;    // [rows]
  float* values;  // [rows, head_dim]
};

// Query rows that `attend` works on at a time: whole tokens, whose `group` heads share keys.
static constexpr int32_t attend_rows(int32_t group) { return group > 48 ? group : 48 / group * group; }
// Floats of scratch that `attend` needs, for any number of tokens.
static constexpr int64_t attend_scratch(int32_t group, int32_t head_dim) {
  const int64_t rows = attend_rows(group), padded = (head_dim + 63) / 64 * 64;
  return rows * (2 * padded + 3 * kTileTokens / 2 + 3) + kTileTokens + padded * (2 * kPageTokens + kTileTokens / 4);
}

struct Kernels {
  const char* name;  // "avx2", "avx512-vnni", "neon-i8mm", "neon-dotprod", "generic", ...

  // x [rows, cols] by stride -> activations rows [row, row + rows)
  void (*prepare)(const float* x, int64_t stride, int32_t rows, int32_t cols, WeightFormat, const Activations&, int32_t row);
  // rms_norm(x) * weight, then as prepare
  void (*norm_prepare)(const float* x, int64_t stride, int32_t rows, int32_t cols, const float* weight, float eps, WeightFormat,
                       const Activations&, int32_t row);
  // activations rows [row, row + rows) times panels [panel, panel + panels) of the matrix; out [.., width] by stride, row by row
  void (*linear)(const Matrix&, const Activations&, int32_t row, int32_t rows, int32_t panel, int32_t panels, Epilogue, float* out,
                 int64_t stride);

  // panels of gate and up in turn, 2 * `pairs` of them -> activation(gate) * up [16 * pairs], as the gated epilogues
  void (*gate)(Epilogue, const float* both, int32_t pairs, float* out);

  void (*rms_norm)(const float* x, const float* weight, float eps, int32_t cols, float* out);
  // turns the first 2 * half values of a head; cos, sin [half]; kernels/rope.py says how
  void (*rope)(float* head, const float* cos, const float* sin, int32_t half);
  void (*softcap)(float* x, int64_t count, float cap);
  // one token's k, v [kv_heads, head_dim] into slot = page * 16 + offset
  void (*kv_write)(const KVPages&, const float* k, const float* v, int64_t slot);
  void (*attend)(const KVPages&, const AttentionTile&, float* scratch, const Partial&);
  // `tiles` partials of `rows` rows, one after the other -> out [rows, head_dim] by `group` and token stride
  void (*merge)(const Partial&, int32_t tiles, int32_t tokens, int32_t group, int32_t head_dim, float* out, int64_t token_stride);
  // index of the largest of `count` logits, the first of equals; -1 if it is not finite
  int32_t (*argmax)(const float* logits, int32_t count);
};

int32_t panel_rows();  // of every format and instruction set
// The best for this processor, or the one named by `name`; null if it is unknown or this processor lacks it.
const Kernels* choose_kernels(const char* name);

}  // namespace edgewise
