// Single operations for Python: attention over a ragged batch, storing keys and values, norms, rotation, soft cap, argmax. The
// whole forward pass of a decoder is step.cpp's. Pointers are to contiguous memory unless a stride is given.
#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "abi.h"
#include "bounds.h"
#include "runtime.h"

namespace edgewise {
namespace {

constexpr int32_t kBlockTokens = 32;  // query tokens of one piece of work

// kernels/native/attention.py has the same fields.
struct AttentionCall {
  KVPages pages;
  const float* q;  // [tokens, heads, head_dim]
  float* out;      // like q
  const int64_t* positions;
  const int64_t* visible;
  const int32_t* block_tables;  // [sequences, table_width]
  const int32_t* query_lens;
  int32_t sequences, table_width, heads, window;
  float scale, softcap;
};

struct Piece {
  int32_t sequence, token, tokens, kv_head;
};

struct Work {
  const AttentionCall& call;
  std::vector<Piece> pieces;
  std::atomic<size_t> next{0};

  int32_t group() const { return call.heads / call.pages.kv_heads; }
};

// Of each thread, kept: fresh memory costs more than a short context. Whoever holds the pool has them; they grow before its
// threads start, where a lack of memory can be told. Never deleted: threads may compute while the process ends.
std::vector<float>* const scratch_of = new std::vector<float>[kMaxThreads];

// Key positions that a piece looks at, in whole tiles from `first` on.
struct Keys {
  int64_t first, last, tiles;
};

std::vector<Piece> pieces_of(const AttentionCall& call) {
  std::vector<Piece> pieces;
  int32_t first = 0;
  for (int32_t sequence = 0; sequence < call.sequences; ++sequence) {
    const int32_t count = call.query_lens[sequence];
    for (int32_t at = 0; at < count; at += kBlockTokens) {
      const int32_t tokens = count - at < kBlockTokens ? count - at : kBlockTokens;
      for (int32_t head = 0; head < call.pages.kv_heads; ++head) pieces.push_back({sequence, first + at, tokens, head});
    }
    first += count;
  }
  return pieces;
}

Keys keys_of(const AttentionCall& call, const Piece& piece) {
  const int64_t* positions = call.positions + piece.token;
  const int64_t* visible = call.visible + piece.token;
  int64_t first = positions[0], last = 0;
  for (int32_t i = 0; i < piece.tokens; ++i) {
    first = positions[i] < first ? positions[i] : first;
    last = visible[i] > last ? visible[i] : last;
  }
  first = call.window > 0 && first >= call.window ? (first - call.window + 1) / kTileTokens * kTileTokens : 0;
  return {first, last, (last + kTileTokens - first) / kTileTokens};
}

int64_t attend_floats(const Work& work) { return (attend_scratch(work.group(), work.call.pages.head_dim) + 15) / 16 * 16; }

// Floats that `attend_piece` needs for any piece.
size_t scratch_floats(const Work& work) {
  int64_t most = 0;
  for (const Piece& piece : work.pieces) most = std::max(most, keys_of(work.call, piece).tiles * piece.tokens * work.group());
  return static_cast<size_t>(attend_floats(work) + most * (work.call.pages.head_dim + 2));
}

// All tiles of a piece, in order, then their sum.
void attend_piece(const Work& work, const Piece& piece, float* memory) {
  const AttentionCall& call = work.call;
  const int64_t group = work.group(), head_dim = call.pages.head_dim, stride = call.heads * head_dim;
  const Keys keys = keys_of(call, piece);
  const int64_t rows = piece.tokens * group;
  float* partial = memory + attend_floats(work);
  const Partial all = {partial, partial + keys.tiles * rows, partial + 2 * keys.tiles * rows};
  AttentionTile tile = {};
  tile.q = call.q + piece.token * stride + piece.kv_head * group * head_dim;
  tile.token_stride = stride;
  tile.tokens = piece.tokens;
  tile.group = static_cast<int32_t>(group);
  tile.positions = call.positions + piece.token;
  tile.visible = call.visible + piece.token;
  tile.window = call.window;
  tile.pages = call.block_tables + static_cast<int64_t>(piece.sequence) * call.table_width;
  tile.kv_head = piece.kv_head;
  tile.scale = call.scale;
  tile.softcap = call.softcap;
  for (int64_t i = 0; i < keys.tiles; ++i) {
    tile.first = static_cast<int32_t>(keys.first + i * kTileTokens);
    tile.end = static_cast<int32_t>(std::min<int64_t>(keys.last + 1, tile.first + kTileTokens));
    kernels().attend(call.pages, tile, memory, {all.maxima + i * rows, all.sums + i * rows, all.values + i * rows * head_dim});
  }
  kernels().merge(all, static_cast<int32_t>(keys.tiles), piece.tokens, tile.group, call.pages.head_dim,
                  call.out + piece.token * stride + piece.kv_head * group * head_dim, stride);
}

void attend_pieces(void* context, int thread) {
  Work& work = *static_cast<Work*>(context);
  float* memory = scratch_of[thread].data();
  for (size_t i = work.next++; i < work.pieces.size(); i = work.next++) attend_piece(work, work.pieces[i], memory);
}

}  // namespace
}  // namespace edgewise

// A `Fault`, 0 if attention was computed; kNoMemory.
EDGEWISE_EXPORT int32_t edgewise_attention(const edgewise::AttentionCall* call, int64_t tokens) {
  using namespace edgewise;
  const Layout layout{tokens, call->sequences, call->table_width, call->positions, call->visible, call->block_tables, call->query_lens};
  const Fault fault = check_layout(layout, call->window, call->pages.pages);
  if (fault != Fault::kNone) return static_cast<int32_t>(fault);
  try {
    Work work = {*call, pieces_of(*call)};
    const auto alone = pool().hold();
    const size_t need = scratch_floats(work);
    for (int thread = 0; thread < pool().threads(); ++thread) {
      if (scratch_of[thread].size() < need) scratch_of[thread].resize(need);
    }
    pool().run(attend_pieces, &work);
    return 0;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// k, v [tokens, kv_heads, head_dim] by token strides (in floats) into slots [tokens]. A `Fault`, 0 if they were written.
EDGEWISE_EXPORT int32_t edgewise_kv_write(const edgewise::KVPages* pages, const float* k, int64_t k_stride, const float* v,
                                          int64_t v_stride, const int64_t* slots, int64_t tokens) {
  const edgewise::Fault fault = edgewise::check_slots(slots, tokens, pages->pages);
  for (int64_t i = 0; fault == edgewise::Fault::kNone && i < tokens; ++i) {
    edgewise::kernels().kv_write(*pages, k + i * k_stride, v + i * v_stride, slots[i]);
  }
  return static_cast<int32_t>(fault);
}

// x, out [rows, cols]; row r has weight r % weights of weight [weights, cols].
EDGEWISE_EXPORT void edgewise_rms_norm(const float* x, const float* weight, int64_t weights, float eps, int64_t rows, int32_t cols,
                                       float* out) {
  for (int64_t i = 0; i < rows; ++i) edgewise::kernels().rms_norm(x + i * cols, weight + i % weights * cols, eps, cols, out + i * cols);
}

// heads [tokens, heads, head_dim], changed; cos, sin [tokens, half] by a stride.
EDGEWISE_EXPORT void edgewise_rope(float* heads, const float* cos, const float* sin, int64_t stride, int64_t tokens, int32_t count,
                                   int32_t head_dim, int32_t half) {
  for (int64_t token = 0; token < tokens; ++token) {
    for (int32_t head = 0; head < count; ++head, heads += head_dim) {
      edgewise::kernels().rope(heads, cos + token * stride, sin + token * stride, half);
    }
  }
}

EDGEWISE_EXPORT void edgewise_softcap(float* x, int64_t count, float cap) { edgewise::kernels().softcap(x, count, cap); }

// logits [rows, count] -> out [rows]
EDGEWISE_EXPORT void edgewise_argmax(const float* logits, int64_t rows, int32_t count, int32_t* out) {
  for (int64_t i = 0; i < rows; ++i) out[i] = edgewise::kernels().argmax(logits + i * count, count);
}
