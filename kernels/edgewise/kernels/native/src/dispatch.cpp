// Which of the compiled instruction sets this processor has.
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM  // headers of older systems
#define HWCAP2_I8MM (1 << 13)
#endif
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
namespace i8mm {
extern const Kernels kKernels;
}
#endif

#if defined(__x86_64__)
enum Feature : unsigned { kAvx2 = 1, kFma = 2, kF16c = 4, kAvx512 = 8, kVnni = 16 };

// Whether a processor with these features has all that isa_avx512.cpp and isa_avx2.cpp are compiled for: AVX-512 without VNNI
// (Skylake-X) takes AVX2. Not in the file's own namespace for tests, which have no such processors.
bool fits_avx2(unsigned has) { return (has & (kAvx2 | kFma | kF16c)) == (kAvx2 | kFma | kF16c); }
bool fits_avx512(unsigned has) { return fits_avx2(has) && (has & (kAvx512 | kVnni)) == (kAvx512 | kVnni); }
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool usable;
};

#if defined(__x86_64__)
// What this processor has. The compiler's own test also asks whether the system saves the wide registers.
unsigned features() {
  unsigned a, b, c, d, found = 0;
  // __builtin_cpu_supports knows it from g++ 11 on. Its registers are those of AVX, about which the system was asked.
  if (__get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0) found |= kF16c;
  if (__builtin_cpu_supports("avx2")) found |= kAvx2;
  if (__builtin_cpu_supports("fma")) found |= kFma;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    found |= kAvx512;
  }
  if (__builtin_cpu_supports("avx512vnni")) found |= kVnni;
  return found;
}
#elif defined(__aarch64__) && defined(__linux__)
// What isa_neon.cpp is compiled for (build_native.py): dot products, and halves as scalars and in vectors.
constexpr unsigned long kNeonNeeds = HWCAP_ASIMDDP | HWCAP_FPHP | HWCAP_ASIMDHP;

bool has_neon() { return (getauxval(AT_HWCAP) & kNeonNeeds) == kNeonNeeds; }
// isa_i8mm.cpp is compiled for all that and for products of matrices of bytes.
bool has_i8mm() { return has_neon() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#endif

// Best first.
template <typename Visit>
const Kernels* first(Visit&& wanted) {
  const Candidate all[] = {
#if defined(__x86_64__)
      {&avx512::kKernels, fits_avx512(features())},
      {&avx2::kKernels, fits_avx2(features())},
#elif defined(__aarch64__) && defined(__linux__)
      {&i8mm::kKernels, has_i8mm()},
      {&neon::kKernels, has_neon()},
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
