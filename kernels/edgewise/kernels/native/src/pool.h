// A team of threads that computes one step together: it spins for a moment between two steps, then sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace edgewise {

class Pool {
 public:
  explicit Pool(int threads);  // 1 <= threads <= kMaxThreads; the caller of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // Calls work(context, thread) once on every thread and returns when all have returned. A second caller waits for the first;
  // `work` must not call it.
  void run(void (*work)(void* context, int thread), void* context);
  // Inside `run`: waits until every thread is here; what each has written is seen by all.
  void barrier();

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace edgewise
