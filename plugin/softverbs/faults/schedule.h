// Timed faults: a thread that runs tasks at given times.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace verbena::softverbs::faults {

// A thread that runs tasks at given times, one after the other. The thread starts when the first task is
// added.
class Schedule {
 public:
  void add(uint64_t due_ns, std::function<void()> work);  // by read_clock_ns

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<uint64_t, std::function<void()>> entries_;
  bool is_started_ = false;
};

}  // namespace verbena::softverbs::faults
