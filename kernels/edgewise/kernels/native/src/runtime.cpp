#include "runtime.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "abi.h"

namespace edgewise {
namespace {

const Kernels* chosen = nullptr;
std::atomic<Pool*> team{nullptr};
std::mutex making;  // of a pool
std::atomic<int> threads{1};  // of a pool that is yet to be made

// The child has none of the pool's threads; what the parent's pool holds is left to the parent.
void forget_pool() { team.store(nullptr); }

}  // namespace

const Kernels& kernels() { return *chosen; }

Pool& pool() {
  if (Pool* made = team.load(std::memory_order_acquire)) return *made;
  const std::lock_guard<std::mutex> alone(making);
  if (team.load() == nullptr) team.store(new Pool(threads));
  return *team.load();
}

}  // namespace edgewise

EDGEWISE_EXPORT int32_t edgewise_abi_version() { return edgewise::kAbiVersion; }

EDGEWISE_EXPORT int32_t edgewise_numerics() { return edgewise::kNumerics; }

// Chooses kernels, by name or the best if `isa` is empty. 0, or -1 if this processor has no such instructions. May be called again
// while no operation runs.
EDGEWISE_EXPORT int32_t edgewise_start(const char* isa) {
  using namespace edgewise;
  const Kernels* found = choose_kernels(isa[0] == '\0' ? nullptr : isa);
  if (found == nullptr) return -1;
  if (chosen == nullptr) pthread_atfork(nullptr, nullptr, forget_pool);
  chosen = found;
  return 0;
}

EDGEWISE_EXPORT const char* edgewise_isa() { return edgewise::kernels().name; }

// Makes the pool with so many threads, or as many as the system allows, after what runs on it; edgewise_threads says how many.
// 0, or -1 if the number is out of range or there is no memory.
EDGEWISE_EXPORT int32_t edgewise_set_threads(int32_t count) {
  using namespace edgewise;
  if (count < 1 || count > kMaxThreads) return -1;
  threads = count;
  try {
    pool().resize(count);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  threads = pool().threads();
  return 0;
}

EDGEWISE_EXPORT int32_t edgewise_threads() {
  const edgewise::Pool* made = edgewise::team.load();
  return made == nullptr ? edgewise::threads.load() : made->threads();
}
