// Kernels for 64-bit ARM with dot products and the instructions that multiply matrices of bytes. Compiled with flags of its own
// (build_native.py), so nothing here may be inline or a template outside the namespace: the linker might give another file's
// callers this copy.
#define EDGEWISE_ISA_NAMESPACE i8mm
#define EDGEWISE_ISA_NAME "neon-i8mm"
#define EDGEWISE_ISA_NEON 1
#define EDGEWISE_ISA_I8MM 1
#include "kernels.inc.h"
