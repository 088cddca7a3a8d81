// The table of one instruction set; each isa_*.cpp includes this once.
#include "kernels.h"
#include "simd.inc.h"
// in this order: norms serve products
#include "rowwise.inc.h"
#include "attention.inc.h"
#include "linear.inc.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {

extern const Kernels kKernels;
const Kernels kKernels = {
    EDGEWISE_ISA_NAME, prepare, norm_prepare, linear, gate, rms_norm, rope, softcap, kv_write, attend, merge, argmax,
};

}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
