// Kernels for x86-64 with AVX-512 F, BW, VL, DQ and VNNI. Compiled with flags of its own (build_native.py), so nothing here may be inline
// or a template outside the namespace: the linker might give another file's callers this copy.
#define EDGEWISE_ISA_NAMESPACE avx512
#define EDGEWISE_ISA_NAME "avx512-vnni"
#define EDGEWISE_ISA_AVX512 1
#include "kernels.inc.h"
