// Kernels for any processor; the oracle of the others, and what runs where they do not. Compiled with flags of its own (build_native.py), so nothing here may be inline
// or a template outside the namespace: the linker might give another file's callers this copy.
#define EDGEWISE_ISA_NAMESPACE generic
#define EDGEWISE_ISA_NAME "generic"
#define EDGEWISE_ISA_GENERIC 1
#include "kernels.inc.h"
