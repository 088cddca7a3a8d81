// Which of the compiled instruction sets this processor has.
#include <cstring>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
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

// Best first. The compiler's own test also asks whether the system saves the wide registers.
template <typename Visit>
const Kernels* first(Visit&& wanted) {
  const Candidate all[] = {
#if defined(__x86_64__)
      {&avx512::kKernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vnni")},
      {&avx2::kKernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#elif defined(__aarch64__) && defined(__linux__)
      {&neon::kKernels, (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0},
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
