// What every file with functions for Python includes. Plain C: one library serves every Python.
#pragma once

#include <cstdint>

#define EDGEWISE_EXPORT extern "C" __attribute__((visibility("default")))

namespace edgewise {

// Changes with every function or struct that Python sees; library.py has the same number.
constexpr int32_t kAbiVersion = 5;

// Changes with the bits of any result, by the layout of packed weights or an order of additions; library.py has the same number.
constexpr int32_t kNumerics = 3;

// What functions return that could not get the memory they need; whatever else they tell is 0 or more, or -1 for nothing to tell.
constexpr int32_t kNoMemory = -2;

}  // namespace edgewise
