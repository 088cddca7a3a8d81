// What every file with functions for Python includes. Plain C: one library serves every Python.
#pragma once

#include <cstdint>

#define EDGEWISE_EXPORT extern "C" __attribute__((visibility("default")))

namespace edgewise {

// Changes with every function or struct that Python sees; library.py has the same number.
constexpr int32_t kAbiVersion = 2;

}  // namespace edgewise
