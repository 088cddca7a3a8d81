// The kernels and the pool that this process uses.
#pragma once

#include "kernels.h"
#include "pool.h"

namespace edgewise {

// Chosen once by edgewise_start; never null after that.
const Kernels& kernels();

// The process's pool, made at the first use with the threads that edgewise_set_threads named (1 until then). A forked child
// makes its own: threads do not survive fork.
Pool& pool();

}  // namespace edgewise
