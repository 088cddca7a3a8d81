#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <exception>
#include <thread>
#include <vector>

namespace edgewise {
namespace {

// How long a waiting thread keeps its core before it sleeps. Steps and the operations in them follow one another within a few
// microseconds; a thread that waits longer than this waits for one that lost its core, and the core is better given to that.
constexpr int64_t kSpinNanoseconds = 50'000;
constexpr int kPausesPerLook = 64;  // a pause lasts 15 to 50 ns; the clock is read after so many

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A number that one thread advances while others wait. Sleepers are counted, so that nobody calls the kernel for none.
struct alignas(128) Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  // Both sides are sequentially consistent: either the waiter sees the new value, or the waker sees the sleeper.
  void advance(uint32_t to) {
    value.store(to, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
  }

  // Returns when the value is not `old`.
  void wait(uint32_t old) {
    const int64_t give_up = now() + kSpinNanoseconds;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
      }
    } while (now() < give_up);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (value.load(std::memory_order_seq_cst) == old) {
      syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
};

}  // namespace

struct Pool::State {
  Signal start;    // advanced by run and by the destructor
  Signal release;  // advanced by the last thread to reach a barrier
  alignas(128) std::atomic<int> arrived{0};
  void (*work)(void*, int) = nullptr;  // null: the threads end
  void* context = nullptr;
  std::vector<std::thread> others;
  std::recursive_mutex one;
};

Pool::Pool(int threads) : state_(std::make_unique<State>()) { start(threads); }

Pool::~Pool() { stop(); }

void Pool::resize(int threads) {
  const auto alone = hold();
  if (threads == this->threads()) return;
  stop();
  start(threads);
}

std::unique_lock<std::recursive_mutex> Pool::hold() { return std::unique_lock(state_->one); }

void Pool::start(int threads) {
  // Threads inherit the mask: signals of the process are for threads of Python, whose waits they must end. Those of a fault are for
  // the thread that made it: blocked, they would end the process unseen by whoever reports faults.
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  State& state = *state_;
  const uint32_t first = state.start.value.load(std::memory_order_relaxed);
  int made = 1;
  try {
    state.others.reserve(threads - 1);
    for (; made < threads; ++made) {
      state.others.emplace_back([this, &state, first, thread = made] {
        pthread_setname_np(pthread_self(), "edgewise-pool");
        for (uint32_t turn = first;; ++turn) {
          state.start.wait(turn);
          if (state.work == nullptr) return;
          state.work(state.context, thread);
          barrier();
        }
      });
    }
  } catch (const std::exception&) {
    // A limit of threads or of memory: results do not depend on how many there are, so those that were made go on.
  }
  threads_.store(made, std::memory_order_relaxed);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::stop() {
  state_->work = nullptr;
  state_->start.advance(state_->start.value.load(std::memory_order_relaxed) + 1);
  for (std::thread& other : state_->others) other.join();
  state_->others.clear();
}

void Pool::run(void (*work)(void*, int), void* context) {
  const auto alone = hold();
  if (threads() == 1) return work(context, 0);
  State& state = *state_;
  state.work = work;
  state.context = context;
  state.start.advance(state.start.value.load(std::memory_order_relaxed) + 1);
  work(context, 0);
  barrier();
}

void Pool::barrier() {
  if (threads() == 1) return;
  State& state = *state_;
  const uint32_t turn = state.release.value.load(std::memory_order_relaxed);
  if (state.arrived.fetch_add(1, std::memory_order_acq_rel) == threads() - 1) {
    state.arrived.store(0, std::memory_order_relaxed);
    state.release.advance(turn + 1);
  } else {
    state.release.wait(turn);
  }
}

}  // namespace edgewise
