// How the instruction sets that pack values by runs of kRun dimensions mix them; each has mix_run.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

void mix_values(const int8_t* packed, int32_t head_dim, const uint8_t* weights, const float* scales, int rows, int first,
                int last, float* out) {
  for (int32_t at = 0; at < head_dim; at += kRun, packed += kRun * kTileTokens) {
    const int32_t dims = head_dim - at < kRun ? head_dim - at : kRun;
    in_fours(rows, [&](auto some, int row) __attribute__((always_inline)) {
      const uint8_t* own = weights + static_cast<int64_t>(row) * 2 * kTileTokens;
      mix_run<some.kCount>(packed, head_dim, dims, own, scales + row, first, last, out + static_cast<int64_t>(row) * head_dim + at);
    });
  }
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
