#include "step.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "packing.h"
#include "runtime.h"
#include "step.inc.h"

namespace edgewise {
namespace {

constexpr WeightFormat kFloats = WeightFormat::kFloat32;
constexpr int32_t kSmallRows = 4;        // up to here preparing all rows is cheaper than a barrier
constexpr int32_t kChunksPerThread = 4;  // of a product's panels: small enough to even out, large enough to stream
constexpr int32_t kPhasesPerLayer = 13;

int32_t round_up(int32_t count, int32_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// The format for which an input of all three is prepared: they take the same, but one of them may want sums of 16 as well.
WeightFormat input_of(const Matrix (&parts)[3]) {
  for (const Matrix& part : parts) {
    if (part.rows > 0 && part.format == WeightFormat::kInt8K16) return part.format;
  }
  return parts[0].format;
}

}  // namespace

void Buffer::grow(int64_t bytes) {
  std::free(data_);
  data_ = std::aligned_alloc(64, static_cast<size_t>(bytes));
  bytes_ = data_ == nullptr ? 0 : bytes;
  if (data_ == nullptr) throw std::bad_alloc();
}

Decoder::Decoder(const ModelShape& shape, const LayerWeights* layers, const RopeTable* ropes, const Matrix& embedding,
                 const Matrix& head, const float* norm)
    : shape_(shape),
      layers_(layers, layers + shape.layers),
      ropes_(ropes, ropes + shape.ropes),
      embedding_(embedding),
      head_(head),
      norm_(norm),
      group_(shape.heads / shape.kv_heads),
      qkv_width_((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
      mixed_width_(shape.heads * shape.head_dim),
      inner_width_(round_up(shape.ffn, panel_rows())),
      expert_width_(round_up(shape.expert_ffn, panel_rows())),
      route_width_(round_up(shape.experts, panel_rows())),
      widest_(round_up(std::max({shape.hidden, mixed_width_, inner_width_, expert_width_}), kGroup)),
      workers_(new Worker[kMaxThreads]),
      counters_(new Counter[kPhasesPerLayer * shape.layers]) {
  const auto note = [this](const Matrix& matrix) {
    (is_integer(matrix.format) ? integers_ : floats_) = true;
    if (matrix.format == WeightFormat::kInt8K16) halves_ = true;
  };
  note(head_);
  for (const LayerWeights& layer : layers_) {
    for (const Matrix& part : layer.qkv) {
      if (part.rows > 0) note(part);
    }
    note(layer.output);
    if (layer.router.rows > 0) note(layer.router);
    const Matrix* feed = layer.router.rows > 0 ? layer.experts : &layer.gate_up;
    note(feed[0]);
    note(layer.router.rows > 0 ? layer.experts[1] : layer.down);
    auto known = std::find(windows_.begin(), windows_.end(), layer.window);
    plan_of_.push_back(static_cast<int32_t>(known - windows_.begin()));
    if (known == windows_.end()) windows_.push_back(layer.window);
    if (layer.window > 0 && (narrowest_ == 0 || layer.window < narrowest_)) narrowest_ = layer.window;
  }
  plans_.resize(windows_.size());
}

// --- sharing work ---

template <class Work>
void Decoder::run(Work work) {
  struct Context {
    Decoder* self;
    Work* work;
  } context{this, &work};
  pool().run(
      [](void* given, int thread) {
        auto* context = static_cast<Context*>(given);
        (*context->work)(context->self->workers_[thread]);
      },
      &context);
}

void Decoder::multiply(Worker& me, const Matrix& matrix, const Activations& x, int32_t rows, Epilogue epilogue, float* out,
                       int64_t stride, const Low& low) {
  const int32_t unit = epilogue == Epilogue::kSiluMul || epilogue == Epilogue::kGeluMul ? 2 : 1;
  const int32_t units = (matrix.rows + panel_rows() * unit - 1) / (panel_rows() * unit);
  const int32_t chunk = std::max(1, units / (threads_ * kChunksPerThread));
  share(me, (units + chunk - 1) / chunk, [&](int32_t item) {
    const int32_t first = item * chunk, count = std::min(chunk, units - first);
    if (low.values != nullptr) return multiply_adapted(matrix, x, rows, first * unit, count * unit, epilogue, out, stride, low);
    kernels_->linear(matrix, x, 0, rows, first * unit, count * unit, epilogue, out, stride);
  });
}

// x += the product, or its norm
void Decoder::add_branch(Worker& me, const Matrix& matrix, const Activations& activations, const float* post_norm,
                         const Low& low) {
  const int32_t hidden = shape_.hidden;
  if (post_norm == nullptr) {
    multiply(me, matrix, activations, batch_.tokens, Epilogue::kAdd, x_, hidden, low);
    pool().barrier();
    return;
  }
  multiply(me, matrix, activations, batch_.tokens, Epilogue::kStore, branch_, hidden, low);
  pool().barrier();
  split_rows(me, batch_.tokens, [&](int32_t row) {
    float* branch = branch_ + int64_t{row} * hidden;
    float* x = x_ + int64_t{row} * hidden;
    kernels_->rms_norm(branch, post_norm, shape_.eps, hidden, branch);
    for (int32_t i = 0; i < hidden; ++i) x[i] += branch[i];
  });
  pool().barrier();
}

// --- the step ---

Activations Decoder::activations(ActivationBuffers* buffers, int32_t rows) const {
  Activations made{};
  const int64_t size = int64_t{rows} * widest_;
  if (floats_ || batch_.adapter_of != nullptr) made.values = buffers->values.take<float>(size);
  const auto codes = [size, this](RoundedBuffers* of) {
    return RoundedRows{of->codes.take<int8_t>(size), of->scales.take<float>(size / kGroup), of->sums.take<float>(size / kGroup),
                       of->totals.take<int32_t>(size / kGroup), halves_ ? of->halves.take<int32_t>(2 * size / kGroup) : nullptr};
  };
  if (integers_) made.coarse = codes(&buffers->coarse), made.fine = codes(&buffers->fine);
  return made;
}

void Decoder::begin(int32_t rows, int32_t phases) {
  kernels_ = &kernels();
  threads_ = pool().threads();
  small_ = rows <= kSmallRows || threads_ == 1;
  for (int32_t i = 0; i < phases; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  for (int32_t i = 0; i < threads_; ++i) {
    workers_[i].index = i;
    workers_[i].phase = 0;
    if (small_) workers_[i].own = activations(&workers_[i].buffers, rows);
  }
  if (!small_) shared_ = activations(&shared_buffers_, rows);
}

void Decoder::begin_attention() {
  const int32_t head_dim = shape_.head_dim;
  int64_t own = 0, shared = 0;
  for (size_t i = 0; i < windows_.size(); ++i) {
    make_plan(batch_, windows_[i], shape_.kv_heads, group_, head_dim, threads_, &plans_[i]);
    (plans_[i].split ? shared : own) = std::max(plans_[i].split ? shared : own,
                                                plans_[i].split ? plans_[i].shared_rows : plans_[i].own_rows);
  }
  partial_ = partial_buffer_.take<float>(shared * (head_dim + 2));
  for (int32_t i = 0; i < threads_; ++i) {
    Worker& worker = workers_[i];
    worker.query.take<float>(int64_t{group_} * head_dim);
    worker.partial.take<float>(own * (head_dim + 2));
    worker.scratch.take<float>(attend_scratch(group_, head_dim));
    worker.mixed.take<float>(int64_t{kSmallRows} * mixed_width_);
  }
}

Fault Decoder::forward(const Batch& batch, const KVPages* kv, float* hidden) {
  const Fault fault = check(batch, kv);
  if (fault != Fault::kNone) return fault;
  const auto alone = pool().hold();  // buffers are made for as many threads as it has
  batch_ = batch;
  kv_ = kv;
  hidden_ = hidden;
  const int64_t tokens = batch.tokens;
  begin(batch.tokens, kPhasesPerLayer * shape_.layers);
  single_ = batch.tokens == batch.sequences;
  sequence_of_.clear();
  for (int32_t i = 0; i < batch.sequences; ++i) sequence_of_.insert(sequence_of_.end(), batch.query_lens[i], i);
  media_of_.assign(batch.media_count > 0 ? tokens : 0, -1);
  for (int32_t i = 0; i < batch.media_count; ++i) media_of_[batch.media_rows[i]] = i;
  x_ = residual_buffer_.take<float>(tokens * shape_.hidden);
  branch_ = layers_[0].attention_post_norm == nullptr && layers_[0].ffn_post_norm == nullptr && shape_.experts == 0
                ? nullptr
                : branch_buffer_.take<float>(tokens * shape_.hidden);
  qkv_ = qkv_buffer_.take<float>(tokens * qkv_width_);
  mixed_ = mixed_buffer_.take<float>(tokens * mixed_width_);
  const int64_t pairs = tokens * shape_.per_token;
  inner_ = inner_buffer_.take<float>(std::max(tokens * inner_width_, pairs * expert_width_));
  if (shape_.experts > 0) {
    routes_ = route_buffer_.take<float>(tokens * route_width_);
    expert_out_ = expert_buffer_.take<float>(pairs * shape_.hidden);
    pairs_ = activations(&pair_buffers_, static_cast<int32_t>(pairs));
    chosen_.resize(pairs);
    place_of_.resize(pairs);
    share_of_.resize(pairs);
    begin_of_.resize(shape_.experts + 1);
    next_of_.resize(shape_.experts);
    for (int32_t i = 0; i < pool().threads(); ++i) workers_[i].order.resize(shape_.experts);
  }
  int64_t half = 0;
  for (const RopeTable& table : ropes_) half += table.half;
  angles_ = batch.rope_positions == nullptr ? nullptr : angles_buffer_.take<float>(tokens * 2 * half);
  begin_attention();
  begin_adapters();
  run([this](Worker& me) { compute(me); });
  return Fault::kNone;
}

void Decoder::compute(Worker& me) {
  split_rows(me, batch_.tokens, [this](int32_t token) { embed(token); });
  pool().barrier();
  for (int32_t index = 0; index < shape_.layers; ++index) layer(me, index);
  split_rows(me, batch_.tokens, [this](int32_t row) {
    const int64_t at = int64_t{row} * shape_.hidden;
    kernels_->rms_norm(x_ + at, norm_, shape_.eps, shape_.hidden, hidden_ + at);
  });
}

// The token's row of x, and its angles where they turn by three positions.
void Decoder::embed(int32_t token) {
  const int32_t hidden = shape_.hidden;
  float* x = x_ + int64_t{token} * hidden;
  if (!media_of_.empty() && media_of_[token] >= 0) {
    std::memcpy(x, batch_.media + int64_t{media_of_[token]} * hidden, sizeof(float) * hidden);
  } else {
    unpack_row(embedding_, static_cast<int32_t>(batch_.ids[token]), x);
    if (shape_.embedding_scale != 1.0f) {
      for (int32_t i = 0; i < hidden; ++i) x[i] *= shape_.embedding_scale;
    }
  }
  if (angles_ == nullptr) return;
  float* out = angles_;
  for (const RopeTable& table : ropes_) {
    float* cos = out + int64_t{token} * table.half;
    float* sin = cos + int64_t{batch_.tokens} * table.half;
    for (int32_t i = 0; i < table.half; ++i) {
      const int64_t axis = table.axes == nullptr ? 0 : table.axes[i];
      const int64_t at = batch_.rope_positions[axis * batch_.tokens + token] * table.half + i;
      cos[i] = table.cos[at];
      sin[i] = table.sin[at];
    }
    out += int64_t{batch_.tokens} * 2 * table.half;
  }
}

void Decoder::angles(int32_t table, int32_t token, const float** cos, const float** sin) const {
  const RopeTable& rope = ropes_[table];
  if (angles_ == nullptr) {
    *cos = rope.cos + batch_.positions[token] * rope.half;
    *sin = rope.sin + batch_.positions[token] * rope.half;
    return;
  }
  const float* out = angles_;
  for (int32_t i = 0; i < table; ++i) out += int64_t{batch_.tokens} * 2 * ropes_[i].half;
  *cos = out + int64_t{token} * rope.half;
  *sin = *cos + int64_t{batch_.tokens} * rope.half;
}

void Decoder::layer(Worker& me, int32_t index) {
  const LayerWeights& weights = layers_[index];
  const int32_t rows = batch_.tokens, hidden = shape_.hidden;
  const WeightFormat input = input_of(weights.qkv);
  const Activations normed = prepared(me, rows, hidden, [&](const Activations& out, int32_t row) {
    const float* x = x_ + int64_t{row} * hidden;
    kernels_->norm_prepare(x, hidden, 1, hidden, weights.attention_norm, shape_.eps, input, out, row);
    if (is_adapted(row)) kernels_->norm_prepare(x, hidden, 1, hidden, weights.attention_norm, shape_.eps, kFloats, out, row);
  });
  float* out = qkv_;
  Low low{lower(me, index, Product::kQkv, normed), index, Product::kQkv, 0};
  for (const Matrix& part : weights.qkv) {
    if (part.rows == 0) continue;
    multiply(me, part, normed, rows, Epilogue::kStore, out, qkv_width_, low);
    out += part.rows;
    ++low.part;
  }
  pool().barrier();
  attention(me, index);
  weights.router.rows > 0 ? feed_experts(me, weights) : feed_forward(me, index);
}

void Decoder::feed_forward(Worker& me, int32_t index) {
  const LayerWeights& weights = layers_[index];
  const int32_t rows = batch_.tokens, hidden = shape_.hidden;
  const Activations normed = prepared(me, rows, hidden, [&](const Activations& out, int32_t row) {
    const float* x = x_ + int64_t{row} * hidden;
    kernels_->norm_prepare(x, hidden, 1, hidden, weights.ffn_norm, shape_.eps, weights.gate_up.format, out, row);
    if (is_adapted(row)) kernels_->norm_prepare(x, hidden, 1, hidden, weights.ffn_norm, shape_.eps, kFloats, out, row);
  });
  const Low gate_up{lower(me, index, Product::kGateUp, normed), index, Product::kGateUp, 0};
  multiply(me, weights.gate_up, normed, rows, shape_.gelu ? Epilogue::kGeluMul : Epilogue::kSiluMul, inner_, inner_width_, gate_up);
  pool().barrier();
  const Activations active = prepared(me, rows, shape_.ffn, [&](const Activations& out, int32_t row) {
    const float* inner = inner_ + int64_t{row} * inner_width_;
    kernels_->prepare(inner, inner_width_, 1, shape_.ffn, weights.down.format, out, row);
    if (is_adapted(row)) kernels_->prepare(inner, inner_width_, 1, shape_.ffn, kFloats, out, row);
  });
  const Low down{lower(me, index, Product::kDown, active), index, Product::kDown, 0};
  add_branch(me, weights.down, active, weights.ffn_post_norm, down);
}

// --- attention ---

void Decoder::attention(Worker& me, int32_t index) {
  const LayerWeights& weights = layers_[index];
  const KVPages& pages = kv_[index];
  const Plan& plan = plans_[plan_of_[index]];
  const int32_t rows = batch_.tokens;
  if (!single_) {  // tokens of a sequence see each other: all keys must be there before any is read
    split_rows(me, rows, [&](int32_t token) { turn_and_write(weights, pages, token); });
    pool().barrier();
  }
  share(me, static_cast<int32_t>(plan.items.size()),
        [&](int32_t item) { attend_item(me, weights, pages, plan, plan.items[item]); });
  pool().barrier();
  float* mixed = mixed_;
  if (plan.split && small_) {
    mixed = me.mixed.take<float>(int64_t{kSmallRows} * mixed_width_);
    for (const Group& group : plan.groups) merge_group(group, shared_partial(group), mixed);
  } else if (plan.split) {
    share(me, static_cast<int32_t>(plan.groups.size()),
          [&](int32_t group) { merge_group(plan.groups[group], shared_partial(plan.groups[group]), mixed); });
    pool().barrier();
  }
  const Activations activations = prepared(me, rows, mixed_width_, [&](const Activations& out, int32_t row) {
    const float* own = mixed + int64_t{row} * mixed_width_;
    kernels_->prepare(own, mixed_width_, 1, mixed_width_, weights.output.format, out, row);
    if (is_adapted(row)) kernels_->prepare(own, mixed_width_, 1, mixed_width_, kFloats, out, row);
  });
  const Low low{lower(me, index, Product::kOutput, activations), index, Product::kOutput, 0};
  add_branch(me, weights.output, activations, weights.attention_post_norm, low);
}

// Norm and rotation of a query or key head; `head` counts through both.
void Decoder::turn(const LayerWeights& weights, int32_t token, int32_t head, float* values) const {
  if (weights.qk_norm != nullptr) {
    kernels_->rms_norm(values, weights.qk_norm + int64_t{head} * shape_.head_dim, shape_.eps, shape_.head_dim, values);
  }
  if (weights.rope < 0) return;
  const float *cos, *sin;
  angles(weights.rope, token, &cos, &sin);
  kernels_->rope(values, cos, sin, ropes_[weights.rope].half);
}

void Decoder::turn_and_write(const LayerWeights& weights, const KVPages& pages, int32_t token) {
  float* heads = qkv_ + int64_t{token} * qkv_width_;
  const int32_t turned = shape_.heads + shape_.kv_heads;
  for (int32_t head = 0; head < turned; ++head) turn(weights, token, head, heads + int64_t{head} * shape_.head_dim);
  kernels_->kv_write(pages, heads + mixed_width_, heads + int64_t{turned} * shape_.head_dim, batch_.slots[token]);
}

// The key and value of a single token's head. Seen as pages of one head, [pages * kv_heads, 1, 16, head_dim], the layer's memory
// is the same.
void Decoder::write_head(const LayerWeights& weights, const KVPages& pages, const Group& group) {
  KVPages one = pages;
  one.kv_heads = 1;
  const int64_t slot = batch_.slots[group.first];
  const int64_t page = slot / kPageTokens * pages.kv_heads + group.kv_head;
  float* key = qkv_ + int64_t{group.first} * qkv_width_ + int64_t{shape_.heads + group.kv_head} * shape_.head_dim;
  turn(weights, group.first, shape_.heads + group.kv_head, key);
  kernels_->kv_write(one, key, key + int64_t{shape_.kv_heads} * shape_.head_dim, page * kPageTokens + slot % kPageTokens);
}

// The group's query heads; those of a single token are turned in a copy, since other threads may need them as well.
const float* Decoder::query(Worker& me, const LayerWeights& weights, const Group& group, int64_t* stride) {
  *stride = qkv_width_;
  const int32_t first = group.kv_head * group_;
  const float* heads = qkv_ + int64_t{group.first} * qkv_width_ + int64_t{first} * shape_.head_dim;
  if (!single_) return heads;
  const int64_t size = int64_t{group_} * shape_.head_dim;
  float* own = me.query.take<float>(size);
  std::memcpy(own, heads, sizeof(float) * size);
  for (int32_t head = 0; head < group_; ++head) turn(weights, group.first, first + head, own + int64_t{head} * shape_.head_dim);
  return own;
}

void Decoder::attend_item(Worker& me, const LayerWeights& weights, const KVPages& pages, const Plan& plan, const Item& item) {
  const Group& group = plan.groups[item.group];
  const bool whole = item.tile < 0;
  if (single_ && (whole || item.tile == group.tiles - 1)) write_head(weights, pages, group);
  int64_t stride = 0;
  const float* q = query(me, weights, group, &stride);
  const int64_t rows = int64_t{group.tokens} * group_, all = rows * group.tiles;
  Partial partial = shared_partial(group);
  if (whole) {
    float* own = me.partial.take<float>(all * (shape_.head_dim + 2));
    partial = {own, own + all, own + 2 * all};
  }
  const int32_t last = whole ? group.tiles : item.tile + 1;
  for (int32_t tile = whole ? 0 : item.tile; tile < last; ++tile) {
    const int64_t at = tile * rows;
    attend_tile(me, weights, pages, group, tile, q, stride,
                {partial.maxima + at, partial.sums + at, partial.values + at * shape_.head_dim});
  }
  if (whole) merge_group(group, partial, mixed_);
}

void Decoder::attend_tile(Worker& me, const LayerWeights& weights, const KVPages& pages, const Group& group, int32_t tile,
                          const float* q, int64_t stride, const Partial& out) const {
  AttentionTile job{};
  job.q = q;
  job.token_stride = stride;
  job.tokens = group.tokens;
  job.group = group_;
  job.positions = batch_.positions + group.first;
  job.visible = (batch_.visible == nullptr ? batch_.positions : batch_.visible) + group.first;
  job.window = weights.window;
  job.pages = batch_.block_tables + int64_t{group.sequence} * batch_.table_width;
  job.kv_head = group.kv_head;
  job.first = (group.tile + tile) * kTileTokens;
  job.end = std::min(job.first + kTileTokens, group.end);
  job.scale = shape_.attention_scale;
  job.softcap = shape_.attention_softcap;
  kernels_->attend(pages, job, me.scratch.take<float>(0), out);
}

Partial Decoder::shared_partial(const Group& group) const {
  const int64_t rows = int64_t{group.tokens} * group_ * group.tiles;
  float* own = partial_ + group.row * (shape_.head_dim + 2);
  return {own, own + rows, own + 2 * rows};
}

void Decoder::merge_group(const Group& group, const Partial& partial, float* mixed) const {
  float* out = mixed + int64_t{group.first} * mixed_width_ + int64_t{group.kv_head} * group_ * shape_.head_dim;
  kernels_->merge(partial, group.tiles, group.tokens, group_, shape_.head_dim, out, mixed_width_);
}

// --- after the last layer ---

void Decoder::logits(const float* hidden, int32_t rows, float* logits) {
  const auto alone = pool().hold();
  batch_ = {};
  batch_.tokens = rows;
  runs_.clear();
  begin(rows, 1);
  run([=](Worker& me) { finish_logits(me, hidden, logits); });
}

void Decoder::finish_logits(Worker& me, const float* hidden, float* logits) {
  const int32_t rows = batch_.tokens, width = shape_.hidden, vocab = shape_.vocab;
  const Activations activations = prepared(me, rows, width, [&](const Activations& out, int32_t row) {
    kernels_->prepare(hidden + int64_t{row} * width, width, 1, width, head_.format, out, row);
  });
  multiply(me, head_, activations, rows, Epilogue::kStore, logits, vocab, {});
  if (shape_.logit_softcap == 0.0f) return;
  pool().barrier();
  const int32_t pieces = (vocab + kTileTokens - 1) / kTileTokens;
  split_rows(me, rows * pieces, [&](int32_t piece) {
    const int32_t first = piece % pieces * kTileTokens;
    kernels_->softcap(logits + int64_t{piece / pieces} * vocab + first, std::min(kTileTokens, vocab - first), shape_.logit_softcap);
  });
}

int64_t Decoder::workspace_bytes() const {
  int64_t bytes = 0;
  const auto add = [&](const ActivationBuffers& of) {
    bytes += of.values.bytes();
    for (const RoundedBuffers* each : {&of.coarse, &of.fine}) {
      for (const Buffer* one : {&each->codes, &each->scales, &each->sums, &each->totals, &each->halves}) bytes += one->bytes();
    }
  };
  add(shared_buffers_);
  add(pair_buffers_);
  for (const Buffer* one : {&residual_buffer_, &branch_buffer_, &qkv_buffer_, &mixed_buffer_, &inner_buffer_, &angles_buffer_,
                            &partial_buffer_, &route_buffer_, &expert_buffer_, &low_buffer_, &wide_buffer_}) {
    bytes += one->bytes();
  }
  for (int i = 0; i < kMaxThreads; ++i) {
    const Worker& worker = workers_[i];
    add(worker.buffers);
    bytes += worker.query.bytes() + worker.scratch.bytes() + worker.partial.bytes() + worker.mixed.bytes() +
             worker.low.bytes();
  }
  return bytes;
}

}  // namespace edgewise
