// Which of the compiled instruction sets this processor has.
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace edgewise {

namespace generic {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const Kernels kKernels;
}
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool usable;
};

#if defined(__x86_64__)
// __builtin_cpu_supports knows it from g++ 11 on. Its registers are those of AVX, about which the system was asked.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#elif defined(__aarch64__) && defined(__linux__)
// What isa_neon.cpp is compiled for (build_native.py): dot products, and halves as scalars and in vectors.
constexpr unsigned long kNeonNeeds = HWCAP_ASIMDDP | HWCAP_FPHP | HWCAP_ASIMDHP;
#endif

// Best first. The compiler's own test also asks whether the system saves the wide registers.
template <typename Visit>
const Kernels* first(Visit&& wanted) {
  const Candidate all[] = {
#if defined(__x86_64__)
      {&avx512::kKernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vnni") && has_f16c()},
      {&avx2::kKernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()},
#elif defined(__aarch64__) && defined(__linux__)
      {&neon::kKernels, (getauxval(AT_HWCAP) & kNeonNeeds) == kNeonNeeds},
#endif
      {&generic::kKernels, true},
  };
  for (const Candidate& candidate : all) {
    if (candidate.usable && wanted(*candidate.kernels)) return candidate.kernels;
  }
  return nullptr;
}

}  // namespace

const Kernels* choose_kernels(const char* name) {
  return first([name](const Kernels& kernels) { return name == nullptr || std::strcmp(kernels.name, name) == 0; });
}

}  // namespace edgewise
