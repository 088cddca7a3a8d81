// Kernels for x86-64 with AVX2, FMA and F16C. Compiled with flags of its own (build_native.py), so nothing here may be inline
// or a template outside the namespace: the linker might give another file's callers this copy.
#define EDGEWISE_ISA_NAMESPACE avx2
#define EDGEWISE_ISA_NAME "avx2"
#define EDGEWISE_ISA_AVX2 1
#include "kernels.inc.h"
