// A team of threads that computes one step together: it spins for a moment between two steps, then sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace edgewise {

class Pool {
 public:
  explicit Pool(int threads);  // as resize
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The caller of `run` is one of them. They do not change while somebody holds the pool.
  int threads() const { return threads_.load(std::memory_order_relaxed); }
  // Waits for whoever holds the pool, then has 1 <= threads <= kMaxThreads, or as many as the system made.
  void resize(int threads);
  // For the calling thread, which may hold it several times: nobody else runs or resizes meanwhile.
  std::unique_lock<std::recursive_mutex> hold();
  // Holds the pool, calls work(context, thread) once on every thread and returns when all have returned. `work` must not call it.
  void run(void (*work)(void* context, int thread), void* context);
  // Inside `run`: waits until every thread is here; what each has written is seen by all.
  void barrier();

 private:
  struct State;
  void start(int threads);
  void stop();
  std::atomic<int> threads_{1};
  std::unique_ptr<State> state_;
};

}  // namespace edgewise
