// Chooses which thread runs: one at a time, with a possible change at every operation. The same seed gives
// the same run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "synchronization.h"

namespace verbena::emulator {

// Addresses that mean the same place of several GPUs: World::add_multicast().
struct MulticastRange {
  uint64_t begin;
  size_t length_bytes;
  std::vector<char*> places;
};

class Scheduler {
 public:
  // `outside_patience_s` is not 0: see World::Limits.
  Scheduler(uint64_t seed, uint64_t stalled_steps_limit, uint64_t steps_limit, uint32_t outside_patience_s);

  // `fibers` are of the caller, complete but for stack and context. Returns "" or what went wrong.
  std::string run(const std::vector<std::unique_ptr<Fiber>>& fibers);

  // The world that runs on this thread; null outside of run().
  static Scheduler* active();

  // For the running thread.
  Fiber& running() { return *running_; }
  // Before an operation: another thread may go first.
  void step(const char* doing, const void* where = nullptr, int64_t detail = kNoDetail);
  // The same without the change of threads: the operation itself waits for others.
  void count_step(const char* doing, const void* where, int64_t detail);
  // Something has happened that other threads can notice, so spinning threads may make progress.
  void note_progress() { stalled_steps_ = 0; }
  // Until someone calls wake().
  void wait();
  void wake(Fiber& fiber);
  void sleep(uint64_t nanoseconds);
  void wait_until_step(uint64_t step);
  // Ends the run: throws here, and in every other thread where it stands. The first text stays.
  [[noreturn]] void fail(const std::string& text);

  uint64_t steps() const { return steps_; }
  uint64_t clock_ns() const { return clock_ns_; }
  SynchronizationModel& synchronization() { return synchronization_; }
  const std::vector<MulticastRange>& multicasts() const { return *multicasts_; }
  void set_multicasts(const std::vector<MulticastRange>& ranges) { multicasts_ = &ranges; }

 private:
  enum class Policy { kLockstep, kRandom, kBursts, kStragglers };

  static void enter_fiber();
  bool is_stopping() const { return !failure_.empty(); }
  Fiber* choose_next();
  void switch_to(Fiber* next);
  Fiber* take_ready();
  void push_ready(Fiber& fiber);
  void wake_sleepers();
  void look_outside();
  uint64_t random();
  int stall_shift() const;
  std::string describe_waits() const;

  const Policy policy_;
  uint64_t random_state_;
  const uint64_t stalled_steps_limit_;
  const uint64_t steps_limit_;
  const uint64_t outside_patience_ns_;

  const std::vector<std::unique_ptr<Fiber>>* fibers_ = nullptr;
  std::unique_ptr<Context> main_;
  Fiber* running_ = nullptr;
  // A ring with room for all threads, a power of two, and a heap by time; neither grows while threads run.
  std::vector<Fiber*> ready_;
  size_t ready_head_ = 0;
  size_t ready_count_ = 0;
  std::vector<Fiber*> sleeping_;

  uint64_t steps_ = 0;
  uint64_t stalled_steps_ = 0;
  uint64_t stalled_since_ns_ = 0;  // of the machine's clock
  uint64_t burst_left_ = 0;
  uint64_t clock_ns_;
  const std::vector<MulticastRange>* multicasts_ = nullptr;
  std::string failure_;
  SynchronizationModel synchronization_;
};

}  // namespace verbena::emulator
