// Drives a pool hard and checks what it promises. usage: pool_stress THREADS RUNS BARRIERS
// Exits 1 with a message if a thread ran twice or not at all, if signals are not left to the caller (those of faults to their thread), or if a barrier let a thread
// through early or without what the others wrote. Prints the median and the 90th centile of the nanoseconds that a run with no work took.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "pool.h"

namespace {

struct alignas(64) Slot {
  int turns = 0;  // plain: only the pool orders accesses
  int calls = 0;
};

struct Work {
  edgewise::Pool* pool;
  std::vector<Slot> slots;
  int barriers;
  int late;  // the thread that dawdles, so that the others fall asleep; -1: none
};

[[noreturn]] void fail(const char* what, int thread) {
  std::fprintf(stderr, "%s (thread %d)\n", what, thread);
  std::exit(1);
}

void check(void* context, int thread) {
  Work& work = *static_cast<Work*>(context);
  Slot& own = work.slots[thread];
  ++own.calls;
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  if (sigismember(&mask, SIGTERM) != (thread == 0 ? 0 : 1)) fail("signals reach the wrong threads", thread);
  if (sigismember(&mask, SIGSEGV) != 0) fail("a thread cannot report a fault of its own", thread);
  for (int i = 1; i <= work.barriers; ++i) {
    if (thread == work.late && i == 1) std::this_thread::sleep_for(std::chrono::microseconds(300));
    own.turns = i;
    work.pool->barrier();
    for (const Slot& other : work.slots) {
      if (other.turns != i) fail("a barrier opened early", thread);
    }
    work.pool->barrier();
  }
}

void run_once(edgewise::Pool& pool, int barriers, int late) {
  const auto alone = pool.hold();  // so that it stays as large as the slots
  Work work{&pool, std::vector<Slot>(pool.threads()), barriers, late};
  pool.run(check, &work);
  for (int thread = 0; thread < pool.threads(); ++thread) {
    if (work.slots[thread].calls != 1) fail("not called once", thread);
  }
}

void nothing(void*, int) {}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]), runs = std::atoi(arguments[2]), barriers = std::atoi(arguments[3]);
  edgewise::Pool pool(threads);
  for (int run = 0; run < runs; ++run) {
    if (run % 16 == 8) std::this_thread::sleep_for(std::chrono::microseconds(300));  // all others sleep now
    run_once(pool, barriers, run % 16 == 0 ? run / 16 % threads : -1);
  }
  std::vector<int64_t> times;
  for (int run = 0; run < runs; ++run) {
    const int64_t began = now();
    pool.run(nothing, nullptr);
    times.push_back(now() - began);
  }
  std::sort(times.begin(), times.end());
  std::printf("%lld %lld\n", static_cast<long long>(times[runs / 2]), static_cast<long long>(times[runs * 9 / 10]));
  std::thread resizing([&] {
    for (int i = 0; i < 40; ++i) pool.resize(i % (threads + 1) + 1);
  });
  for (int i = 0; i < 40; ++i) run_once(pool, barriers, -1);
  resizing.join();
  for (int i = 0; i < 20; ++i) edgewise::Pool another(threads);  // made and ended without work
  return 0;
}
