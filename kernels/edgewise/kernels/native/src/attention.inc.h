// Placeholder: compiles and traps.
#pragma once

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

void attend(const KVPages&, const AttentionTile&, float*, const Partial&) { __builtin_trap(); }
void merge(const Partial&, int32_t, int32_t, int32_t, int32_t, float*, int64_t) { __builtin_trap(); }

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
