// The kernels and the pool that this process uses.
#pragma once

#include "kernels.h"
#include "pool.h"

namespace edgewise {

// Chosen once by edgewise_start; never null after that.
const Kernels& kernels();

// The process's pool, made at the first use and never deleted; of 1 thread until edgewise_set_threads. A forked child makes its
// own, as large: threads do not survive fork.
Pool& pool();

}  // namespace edgewise
