// Placeholder: compiles and traps.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

void prepare(const float*, int64_t, int32_t, int32_t, WeightFormat, const Activations&, int32_t) { __builtin_trap(); }
void norm_prepare(const float*, int64_t, int32_t, int32_t, const float*, float, WeightFormat, const Activations&, int32_t) {
  __builtin_trap();
}
void linear(const Matrix&, const Activations&, int32_t, int32_t, int32_t, int32_t, Epilogue, float*, int64_t) {
  __builtin_trap();
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
