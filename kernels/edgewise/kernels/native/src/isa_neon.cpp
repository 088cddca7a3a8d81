// Kernels for 64-bit ARM with the dot product instructions. Compiled with flags of its own (build_native.py), so nothing here may be inline
// or a template outside the namespace: the linker might give another file's callers this copy.
#define EDGEWISE_ISA_NAMESPACE neon
#define EDGEWISE_ISA_NAME "neon-dotprod"
#define EDGEWISE_ISA_NEON 1
#include "kernels.inc.h"
