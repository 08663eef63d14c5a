// The threads that serve the sockets to other hosts, and the turn (a token) that lets polling threads serve
// the sockets instead.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/wire/gpu.h"

namespace verbena::softverbs::wire {

// Something with a file descriptor that a loop watches.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual void on_ready(uint32_t events) = 0;  // EPOLL*
};

// An epoll set, its thread, and the turn: only the thread that holds the turn reads these sockets and places
// arriving data. A thread that polls a completion queue takes the turn if it is free, so that no other thread
// has to wake up for a message. Meanwhile the loop's own thread does not take the turn.
class Loop {
 public:
  bool open();
  int start();  // starts the thread, once; returns 0 or an errno

  bool add(int fd, uint32_t events, Watched& watched);
  void change(int fd, uint32_t events, Watched& watched);
  void remove(int fd);
  // Runs the task soon, on some thread that has the turn.
  void post(std::function<void()> task);
  // Needs the turn: keeps an object alive until no fetched event can refer to it.
  void retire(std::shared_ptr<void> object) { retired_.push_back(std::move(object)); }
  // Needs the turn: runs the task at the end of this turn.
  void at_end(std::function<void()> task) { at_end_.push_back(std::move(task)); }
  // If set, this function is called about every kHousekeepingMs milliseconds, with the turn.
  std::function<void()> housekeeping;
  static constexpr int kHousekeepingMs = 50;

  void poll();  // called by a thread that waits for completions
  // Waits for the end of the current turn. Every later turn sees the earlier changes of this thread. The
  // calling thread must not hold any turn.
  void quiesce();
  bool is_mine() const;  // this thread has the turn

  GpuPath gpu_path;

  bool is_own_thread() const;
  // Runs the task in the loop's own thread, with the turn. Pollers do not take the turn until then.
  void post_to_thread(std::function<void()> task);

 private:
  bool has_poller() const;
  void keep_house();
  void work();
  bool run();  // needs the turn; returns true if there was work
  void sleep();

  int epoll_ = -1, wake_ = -1;
  bool is_started_ = false;
  std::mutex turn_;
  std::atomic<uint32_t> quiescers_{0};
  std::atomic<uint64_t> last_poll_ns_{0};
  std::atomic<bool> wants_thread_{false};
  std::vector<std::shared_ptr<void>> retired_;
  std::vector<std::function<void()>> at_end_;
  uint64_t housekeeping_due_ns_ = 0;

  std::mutex tasks_mutex_;
  std::vector<std::function<void()>> tasks_, thread_tasks_;
};

}  // namespace verbena::softverbs::wire
