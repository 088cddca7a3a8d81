// A whole forward pass of a decoder over a ragged batch, computed by a pool of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bounds.h"
#include "kernels.h"
#include "plan.h"

namespace edgewise {

// Angles of one kind of rotation, [positions, half]. `axes` [half]: the row of rope_positions by which an angle turns, or null.
struct RopeTable {
  const float* cos;
  const float* sin;
  const int64_t* axes;
  int32_t positions, half;
};

// Norm weights are null where the layer has no such norm.
struct LayerWeights {
  const float* attention_norm;
  const float* attention_post_norm;
  const float* ffn_norm;
  const float* ffn_post_norm;
  const float* qk_norm;  // [heads + kv_heads, head_dim]
  Matrix qkv[3];         // one after the other they give queries, keys and values; those without rows are left out
  Matrix output;
  Matrix gate_up, down;  // of a layer without experts
  Matrix router;         // [experts, hidden]; no rows in a layer without experts
  const Matrix* experts; // [experts, 2]: gate_up and down of each
  int32_t rope;          // which table; -1: the layer does not rotate
  int32_t window;        // 0: sees everything before
};

struct ModelShape {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, ropes;
  float eps, attention_scale, attention_softcap, logit_softcap, embedding_scale;  // softcaps 0: none
  int32_t gelu;  // the gate's activation: 0 silu, 1 gelu by tanh
  int32_t experts, per_token, expert_ffn, normalised;  // of layers with experts; `experts` 0: there are none
};

// Memory that grows to what is asked for and is kept; contents are lost when it grows.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    if (bytes > bytes_) grow(bytes);
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void grow(int64_t bytes);
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct RoundedBuffers {
  Buffer codes, scales, sums, totals, halves;
};

struct ActivationBuffers {
  Buffer values;
  RoundedBuffers coarse, fine;
};

class Decoder {
 public:
  // `layers` [shape.layers] and `ropes` [shape.ropes] are copied; what they point to is not, and must stay.
  Decoder(const ModelShape&, const LayerWeights* layers, const RopeTable* ropes, const Matrix& embedding, const Matrix& head,
          const float* norm);

  // Writes the batch's keys and values into kv [layers], and the states after the final norm to hidden [tokens, hidden].
  Fault forward(const Batch&, const KVPages* kv, float* hidden);
  // hidden [rows, hidden] -> logits [rows, vocab]
  void logits(const float* hidden, int32_t rows, float* logits);
  int64_t workspace_bytes() const;

 private:
  // What a thread has for itself, and where it is in the step's sequence of shared phases.
  struct alignas(64) Worker {
    int index = 0;
    int32_t phase = 0;
    ActivationBuffers buffers;
    Activations own{};  // for small batches, which every thread prepares for itself
    Buffer query, scratch, partial, mixed, low;
    std::vector<int32_t> order;  // of a token's experts [experts]
  };
  struct alignas(64) Counter {
    std::atomic<int32_t> next{0};
  };

  Fault check(const Batch&, const KVPages* kv) const;
  void begin(int32_t rows, int32_t phases);
  void begin_attention();
  void begin_adapters();
  Activations activations(ActivationBuffers*, int32_t rows) const;
  template <class Work>
  void run(Work work);

  void compute(Worker&);
  void embed(int32_t token);
  void layer(Worker&, int32_t index);
  void attention(Worker&, int32_t index);
  void feed_forward(Worker&, int32_t index);
  void feed_experts(Worker&, const LayerWeights&);
  void route(Worker&, int32_t row);
  void order_by_expert();
  void multiply_experts(Worker&, const LayerWeights&, int which, const Activations&, Epilogue, float* out, int64_t stride);
  void gather(const Activations& from, int32_t row, const Activations& to, int32_t place) const;
  void mix(const LayerWeights&, int32_t row);
  void finish_logits(Worker&, const float* hidden, float* logits);

  void turn(const LayerWeights&, int32_t token, int32_t head, float* values) const;
  void turn_and_write(const LayerWeights&, const KVPages&, int32_t token);
  void write_head(const LayerWeights&, const KVPages&, const Group&);
  const float* query(Worker&, const LayerWeights&, const Group&, int64_t* stride);
  void attend_item(Worker&, const LayerWeights&, const KVPages&, const Plan&, const Item&);
  void attend_tile(Worker&, const LayerWeights&, const KVPages&, const Group&, int32_t tile, const float* q, int64_t stride,
                   const Partial&) const;
  void merge_group(const Group&, const Partial&, float* mixed) const;
  Partial shared_partial(const Group&) const;
  void angles(int32_t table, int32_t token, const float** cos, const float** sin) const;

  template <class Work>
  void share(Worker&, int32_t items, Work work);
  template <class Work>
  void split_rows(const Worker&, int32_t rows, Work work) const;
  template <class Prepare>
  Activations prepared(const Worker&, int32_t rows, int32_t cols, Prepare one) const;
  // Products of a layer that adapters change.
  enum class Product : int32_t { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3 };
  // Tokens [first, first + tokens) that are computed with one adapter.
  struct Run {
    int32_t adapter, first, tokens;
  };
  // What adapters have for a product: x A^T by run, null if there is nothing, and which of the product's matrices is computed.
  struct Low {
    const float* values = nullptr;
    int32_t layer = 0;
    Product product = Product::kQkv;
    int32_t part = 0;
  };
  const float* lower(Worker&, int32_t layer, Product, const Activations&);
  const LowRank& low_rank(const Run&, int32_t layer, Product) const;
  void raise(const Low&, int32_t panel, int32_t panels, float* out, int64_t stride) const;
  void multiply_adapted(const Matrix&, const Activations&, int32_t rows, int32_t panel, int32_t panels, Epilogue, float* out,
                        int64_t stride, const Low&) const;
  bool is_adapted(int32_t token) const { return !runs_.empty() && batch_.adapter_of[token] >= 0; }

  void multiply(Worker&, const Matrix&, const Activations&, int32_t rows, Epilogue, float* out, int64_t stride, const Low&);
  void add_branch(Worker&, const Matrix&, const Activations&, const float* post_norm, const Low&);

  ModelShape shape_;
  std::vector<LayerWeights> layers_;
  std::vector<RopeTable> ropes_;
  Matrix embedding_, head_;
  const float* norm_;
  int32_t group_, qkv_width_, mixed_width_, inner_width_, expert_width_, route_width_, widest_;
  bool floats_ = false, integers_ = false, halves_ = false;  // what products take
  std::vector<int32_t> windows_;            // the different ones of all layers
  int32_t narrowest_ = 0;                   // of them; 0: no layer has a window
  std::vector<int32_t> plan_of_;            // by layer
  std::vector<Plan> plans_;                 // by window
  std::unique_ptr<Worker[]> workers_;
  std::unique_ptr<Counter[]> counters_;

  // of the step in work
  Batch batch_{};
  const Kernels* kernels_ = nullptr;
  const KVPages* kv_ = nullptr;
  float* hidden_ = nullptr;
  int threads_ = 1;
  bool small_ = false;   // few rows: threads prepare activations for themselves rather than wait for each other
  bool single_ = false;  // one token of each sequence, which sees no other of the batch
  std::vector<int32_t> sequence_of_, media_of_;
  // Experts of each token in ascending order and their weights [tokens, per_token]; the place of each pair when they lie
  // expert by expert, and where the places of an expert begin [experts + 1].
  std::vector<int32_t> chosen_, place_of_, begin_of_, next_of_;
  std::vector<float> share_of_;
  ActivationBuffers shared_buffers_;
  Activations shared_{};
  ActivationBuffers pair_buffers_;
  Activations pairs_{};
  Buffer route_buffer_, expert_buffer_, low_buffer_, wide_buffer_;
  std::vector<Run> runs_;  // empty: no token is computed with an adapter
  int32_t most_rank_ = 0;
  Buffer residual_buffer_, branch_buffer_, qkv_buffer_, mixed_buffer_, inner_buffer_, angles_buffer_, partial_buffer_;
  float *x_ = nullptr, *branch_ = nullptr, *qkv_ = nullptr, *mixed_ = nullptr, *inner_ = nullptr, *angles_ = nullptr,
        *partial_ = nullptr, *routes_ = nullptr, *expert_out_ = nullptr, *low_ = nullptr, *wide_ = nullptr;
};

}  // namespace edgewise
