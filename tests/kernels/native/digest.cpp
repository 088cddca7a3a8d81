// Prints a digest of what the kernels compute from fixed inputs, for each instruction set that this processor has: equal digests
// are equal bits. Without names, prints which one is chosen here. usage: digest [NAME...]
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "packing.h"

extern "C" int64_t edgewise_pack_rows(const float*, int64_t, int64_t, int32_t, uint8_t*, int64_t);
extern "C" int64_t edgewise_pack_blocks(const uint8_t*, int64_t, int32_t, int64_t, int64_t, int32_t, uint8_t*, int64_t);

using namespace edgewise;

namespace {

constexpr int kLargestTile = 9, kRows = kLargestTile * (kLargestTile + 1) / 2;
constexpr int kOut = 96, kIn = 100, kEven = (kIn + kGroup - 1) / kGroup * kGroup;

struct Random {  // a linear congruential generator: the same everywhere
  uint64_t state = 1;
  float next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) / (1 << 21);
  }
};

std::vector<float> random(size_t count, Random& from) {
  std::vector<float> out(count);
  for (float& x : out) x = from.next();
  return out;
}

struct Digest {  // FNV-1a
  uint64_t value = 14695981039346656037u;
  void add(const void* data, size_t count) {
    for (size_t i = 0; i < count; ++i) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  }
};

// The sign of a NaN is the processor's own.
void canonical(std::vector<float>& values) {
  for (float& each : values) each = each != each ? 12345.0f : each;
}

struct RoundedRowsOf {
  std::vector<int8_t> codes;
  std::vector<float> scales, sums;
  std::vector<int32_t> totals, halves;
  explicit RoundedRowsOf(size_t count)  // full of what nobody may use
      : codes(count, 77),
        scales(count / kGroup, __builtin_nanf("")),
        sums(scales),
        totals(count / kGroup, 12345),
        halves(count / kGroup * 2, 12345) {}
  RoundedRows get() { return {codes.data(), scales.data(), sums.data(), totals.data(), halves.data()}; }
};

// A matrix [kOut, cols] of blocks of GGUF with any codes; `halves`: where a block's float16 numbers stand.
struct Blocks {
  int32_t number, columns, bytes, halves[2];
};

void pack_blocks(WeightFormat format, int cols, Random& from, uint8_t* data) {
  const Blocks kinds[] = {{7, 32, 24, {0, 2}}, {12, 256, 144, {0, 2}}, {13, 256, 176, {0, 2}}, {14, 256, 210, {208, 208}}};
  const Blocks& kind = kinds[static_cast<int32_t>(format) - 6];
  const int row_bytes = cols / kind.columns * kind.bytes;
  std::vector<uint8_t> raw(static_cast<size_t>(kOut * row_bytes));
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(static_cast<int32_t>(from.next() * 64.0f));
  for (size_t block = 0; block < raw.size(); block += static_cast<size_t>(kind.bytes)) {
    for (const int32_t half : kind.halves) {  // an exponent near that of 1/64
      raw[block + half + 1] = static_cast<uint8_t>((raw[block + half + 1] & 0x83) | 0x24);
    }
  }
  edgewise_pack_blocks(raw.data(), row_bytes, kind.number, kOut, cols, static_cast<int32_t>(format), data, 0);
}

void products(const Kernels& kernels, WeightFormat format, Random& from, Digest& digest) {
  const bool floats = format < WeightFormat::kInt8Min;  // are rounded to it
  const int cols = floats ? kIn : 2 * kSuper, padded = floats ? kEven : cols;
  const std::vector<float> weight = random(static_cast<size_t>(kOut * cols), from), norm = random(static_cast<size_t>(cols), from);
  const std::vector<float> bias = random(kOut, from);
  std::vector<float> x = random(static_cast<size_t>(kRows * cols), from);
  for (const int row : {3, 29}) x[static_cast<size_t>(row * cols + 50)] = __builtin_nanf("");
  for (int col = 0; col < cols; ++col) x[static_cast<size_t>(30 * cols + col)] = 0.0f;
  std::vector<uint8_t> data(static_cast<size_t>(kOut / panel_rows() * panel_bytes(format, cols)));
  if (floats) {
    edgewise_pack_rows(weight.data(), kOut, cols, static_cast<int32_t>(format), data.data(), 0);
  } else {
    pack_blocks(format, cols, from, data.data());
  }
  std::vector<float> values(static_cast<size_t>(kRows * padded));
  RoundedRowsOf coarse(values.size()), fine(values.size());
  const Activations a{values.data(), coarse.get(), fine.get(), padded};
  const Matrix matrix{data.data(), bias.data(), kOut, cols, format};
  for (int32_t epilogue = 0; epilogue < 4; ++epilogue) {
    kernels.norm_prepare(x.data(), cols, 3, cols, norm.data(), 1e-5f, format, a, 0);
    kernels.prepare(x.data() + 3 * cols, cols, kRows - 3, cols, format, a, 3);
    std::vector<float> out(kRows * kOut, 0.5f);
    for (int32_t row = 0, tile = 1; row < kRows; row += tile++) {  // tiles of every size
      kernels.linear(matrix, a, row, tile, 0, kOut / panel_rows(), static_cast<Epilogue>(epilogue), out.data(), kOut);
    }
    canonical(out);
    digest.add(out.data(), out.size() * sizeof(float));
  }
}

// Keys and values stored and attended to, with all that is done to rows on the way.
void attention(const Kernels& kernels, KVFormat format, int32_t head_dim, int tokens, Random& from, Digest& digest) {
  constexpr int kMostTokens = 5, kHeads = 2, kQueries = 3, kContext = 300, kPages = (kContext + kPageTokens - 1) / kPageTokens;
  const size_t size = static_cast<size_t>(kPages * kHeads * kPageTokens * head_dim);
  std::vector<uint8_t> k(size * 4), v(size * 4);
  std::vector<float> k_scale(size), v_scale(size);
  const KVPages pages{k.data(), v.data(), k_scale.data(), v_scale.data(), kHeads, head_dim, format, kPages};
  std::vector<float> angles = random(static_cast<size_t>(head_dim), from), weight = random(static_cast<size_t>(head_dim), from);
  for (int32_t at = 0; at < kContext; ++at) {
    std::vector<float> row = random(static_cast<size_t>(2 * kHeads * head_dim), from);
    kernels.rms_norm(row.data(), weight.data(), 1e-5f, head_dim, row.data());
    kernels.rope(row.data(), angles.data(), angles.data() + head_dim / 2, head_dim / 2);
    kernels.kv_write(pages, row.data(), row.data() + kHeads * head_dim, at);
  }
  digest.add(k.data(), k.size());
  digest.add(v_scale.data(), v_scale.size() * sizeof(float));
  if (format != KVFormat::kInt8 && format != KVFormat::kFp8) {
    for (float& each : k_scale) each = 1.0f;
    for (float& each : v_scale) each = 1.0f;
  }
  std::vector<float> q = random(static_cast<size_t>(tokens * kQueries * head_dim), from), out(q.size());
  int64_t positions[kMostTokens];
  int32_t table[kPages];
  for (int i = 0; i < tokens; ++i) positions[i] = kContext - tokens + i;
  for (int i = 0; i < kPages; ++i) table[i] = i;
  std::vector<float> scratch(static_cast<size_t>(attend_scratch(kQueries, head_dim)));
  std::vector<float> maxima(static_cast<size_t>(2 * tokens * kQueries)), sums(maxima.size());
  std::vector<float> values(maxima.size() * static_cast<size_t>(head_dim));
  for (int32_t head = 0; head < kHeads; ++head) {
    if (head == 1) q[0] = __builtin_nanf("");
    for (int32_t tile = 0; tile < 2; ++tile) {
      const int32_t first = tile * kTileTokens, end = tile == 0 ? kTileTokens : kContext, row = tile * tokens * kQueries;
      const AttentionTile task{q.data(), kQueries * head_dim, tokens, kQueries, positions, positions, 150, table, head, first, end,
                               0.2f, head == 0 ? 0.0f : 5.0f};
      kernels.attend(pages, task, scratch.data(),
                     {maxima.data() + row, sums.data() + row, values.data() + static_cast<int64_t>(row) * head_dim});
    }
    kernels.merge({maxima.data(), sums.data(), values.data()}, 2, tokens, kQueries, head_dim, out.data(), kQueries * head_dim);
    kernels.softcap(out.data(), static_cast<int64_t>(out.size()), 2.0f);
    const int32_t best = kernels.argmax(out.data(), static_cast<int32_t>(out.size()));
    canonical(out);
    digest.add(out.data(), out.size() * sizeof(float));
    digest.add(&best, sizeof(best));
  }
}

}  // namespace

int main(int count, char** names) {
  if (count == 1) std::printf("%s\n", choose_kernels(nullptr)->name);
  for (int i = 1; i < count; ++i) {
    const Kernels* kernels = choose_kernels(names[i]);
    if (kernels == nullptr) continue;
    Random from;
    Digest digest;
    for (int32_t format = 0; format <= 9; ++format) products(*kernels, static_cast<WeightFormat>(format), from, digest);
    for (int32_t format = 0; format <= 5; ++format) {
      for (int32_t head_dim : {10, 64, 80}) {
        for (int tokens : {2, 3, 5}) attention(*kernels, static_cast<KVFormat>(format), head_dim, tokens, from, digest);
      }
    }
    std::printf("%s %016llx\n", kernels->name, static_cast<unsigned long long>(digest.value));
  }
  return 0;
}
