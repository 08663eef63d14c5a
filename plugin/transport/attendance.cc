#include "transport/attendance.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/lasting.h"
#include "base/log.h"
#include "transport/roster.h"

namespace verbena::transport {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

// The thread starts with the first connection that needs it and ends with the last.
class Service {
 public:
  static Service& instance() {
    static const base::Lasting<Service> service;
    return *service;
  }

  // Asked when the library is unloaded or the process ends. With connections that nobody closed the thread
  // ends here: its code may be about to go.
  bool is_idle() {
    const bool is_alone = Roster::instance().is_empty();  // its mutex is taken before ours elsewhere
    std::unique_lock lock(mutex_);
    if (due_.empty() && !thread_.joinable()) return is_alone;
    end_thread(lock);
    return false;
  }

  void wake(Attended* attended) {
    const std::lock_guard lock(mutex_);
    attended->is_known_.store(true, std::memory_order_relaxed);
    // Not before those that are due already: one that is woken again and again keeps nobody waiting.
    int64_t& due_ns = due_.try_emplace(attended, kNever).first->second;
    due_ns = std::min(due_ns, base::monotonic_ns());
    if (thread_.joinable()) {
      changed_.notify_all();
    } else {
      start();
    }
  }

  void forget(Attended* attended) {
    std::unique_lock lock(mutex_);
    due_.erase(attended);
    changed_.wait(lock, [&] { return running_ != attended; });
    due_.erase(attended);
    attended->is_known_.store(false, std::memory_order_relaxed);
    if (!due_.empty() || !thread_.joinable()) return;
    end_thread(lock);
    if (!due_.empty()) start();
  }

 private:
  // The mutex is given away meanwhile: the thread needs it to end.
  void end_thread(std::unique_lock<std::mutex>& lock) {
    if (!thread_.joinable()) return;
    is_stopping_ = true;
    changed_.notify_all();
    std::thread ended = std::move(thread_);
    lock.unlock();
    if (getpid() == owner_pid_) {
      ended.join();
    } else {
      ended.detach();  // in a forked child there is no such thread
    }
    lock.lock();
    is_stopping_ = false;
  }

  // Under the mutex. Without a thread the data threads still do everything in their calls.
  void start() {
    if (is_stopping_) return;  // forget() starts it again
    const base::BlockedSignals blocked;
    try {
      owner_pid_ = getpid();
      thread_ = std::thread([this] { run(); });
      pthread_setname_np(thread_.native_handle(), "verbena-service");
    } catch (const std::system_error& error) {
      base::log_warn(
          "service: cannot start its thread: %s (errno %d); is a limit of processes reached, of the user or "
          "of the container?",
          strerror(error.code().value()), error.code().value());
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
      const auto next = std::min_element(due_.begin(), due_.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      const int64_t now_ns = base::monotonic_ns();
      if (next == due_.end() || next->second == kNever) {
        changed_.wait(lock);
      } else if (next->second > now_ns) {
        // By the system's clock, whose waits the thread sanitizer knows; short, as that clock may jump.
        const int64_t wait_ns = std::min<int64_t>(next->second - now_ns, 100 * base::kNsPerMs);
        changed_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_ns));
      } else {
        next->second = kNever;
        attend(lock, next->first);
      }
    }
  }

  // The connection lives as long as running_ names it.
  void attend(std::unique_lock<std::mutex>& lock, Attended* attended) {
    running_ = attended;
    lock.unlock();
    int64_t next_ns = kNever;
    Attended::Turn free = Attended::Turn::kNobody;
    if (attended->turn_.compare_exchange_strong(free, Attended::Turn::kService, std::memory_order_seq_cst)) {
      next_ns = attended->attend();
      attended->turn_.store(Attended::Turn::kNobody, std::memory_order_seq_cst);
      if (attended->is_wanted()) next_ns = base::monotonic_ns();  // since
    }  // otherwise its data thread does it, and wakes us when it leaves
    lock.lock();
    running_ = nullptr;
    const auto entry = due_.find(attended);
    if (entry != due_.end()) entry->second = std::min(entry->second, next_ns);
    changed_.notify_all();
  }

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<Attended*, int64_t> due_;  // when each is to be attended
  Attended* running_ = nullptr;
  std::thread thread_;
  pid_t owner_pid_ = 0;
  bool is_stopping_ = false;
};

void Attended::wake() {
  Service::instance().wake(this);
}

// What the service has forgotten may be retired once more when the service itself is gone.
void Attended::retire() {
  if (is_known_.load(std::memory_order_relaxed)) Service::instance().forget(this);
}

}  // namespace verbena::transport
