// The thread of a rail that does slow work, so that posting threads need not.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace verbena::softverbs {

struct Qp;

// The worker thread of a rail. The worker executes work that would block a posting thread: large copies, and
// requests that wait for the peer.
class RailWorker {
 public:
  // Starts the thread before there is work. Returns 0 or an errno.
  int start();
  // Runs the queue pair's send queue as soon as possible, or after a delay. A queue pair is in the worker's
  // list at most once.
  void add(Qp& qp, uint64_t delay_ns);
  // Ends the delay of a queue pair.
  void hurry(Qp& qp);
  // Runs another task on the thread.
  void run_soon(std::function<void()> chore);
  // After the call returns, the worker does not access the queue pair.
  void forget(Qp& qp);

 private:
  struct Entry {
    Qp* qp;
    uint64_t due_ns;
  };
  int start_locked();
  void tell();
  void work();
  Qp* take_due(std::unique_lock<std::mutex>& lock);
  void rest(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  std::deque<std::function<void()>> chores_;
  Qp* current_ = nullptr;
  bool is_started_ = false;
  std::atomic<uint32_t> additions_{0};  // lets a polling worker see new entries without the mutex
};

RailWorker& get_worker(uint32_t device);

}  // namespace verbena::softverbs
