#include "transport/service/progress_token.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/lasting.h"
#include "base/log.h"
#include "transport/service/registry.h"

namespace verbena::transport {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

// The service thread starts with the first connection that needs it, and ends with the last.
class Service {
 public:
  static Service& instance() {
    static const base::Lasting<Service> service;
    return *service;
  }

  // Called when the library is unloaded or the process ends. If connections were not closed, the thread ends
  // here, because its code may be unloaded next.
  bool is_idle() {
    // Elsewhere the registry's mutex is taken before this one.
    const bool is_alone = Registry::instance().is_empty();
    std::unique_lock lock(mutex_);
    if (due_.empty() && !thread_.joinable()) return is_alone;
    end_thread(lock);
    return false;
  }

  void wake(ProgressToken* token) {
    const std::lock_guard lock(mutex_);
    // Never earlier than the tokens that are already due, so that a token that is woken repeatedly does not
    // delay others.
    const int64_t now_ns = base::monotonic_ns();
    if (!is_known(token)) {
      token->is_known_.store(true, std::memory_order_relaxed);
      token->due_ns_ = now_ns;
      due_.emplace(now_ns, token);
    } else if (now_ns < token->due_ns_) {
      reschedule(token, now_ns);
    }
    if (thread_.joinable()) {
      changed_.notify_all();
    } else {
      start();
    }
  }

  void forget(ProgressToken* token) {
    std::unique_lock lock(mutex_);
    drop(token);
    changed_.wait(lock, [&] { return running_ != token; });
    drop(token);  // it may have been woken since then
    if (!due_.empty() || !thread_.joinable()) return;
    end_thread(lock);
    if (!due_.empty()) start();
  }

 private:
  static bool is_known(const ProgressToken* token) {
    return token->is_known_.load(std::memory_order_relaxed);
  }
  void reschedule(ProgressToken* token, int64_t due_ns) {
    auto node = due_.extract({token->due_ns_, token});
    node.value().first = token->due_ns_ = due_ns;
    due_.insert(std::move(node));
  }
  void drop(ProgressToken* token) {
    if (!is_known(token)) return;
    due_.erase({token->due_ns_, token});
    token->is_known_.store(false, std::memory_order_relaxed);
  }

  // Releases the mutex meanwhile, because the thread needs it to end.
  void end_thread(std::unique_lock<std::mutex>& lock) {
    if (!thread_.joinable()) return;
    is_stopping_ = true;
    changed_.notify_all();
    std::thread ended = std::move(thread_);
    lock.unlock();
    if (getpid() == owner_pid_) {
      ended.join();
    } else {
      ended.detach();  // a forked child has no such thread
    }
    lock.lock();
    is_stopping_ = false;
  }

  // Needs the mutex. If the thread cannot be started, the data threads do all work in their calls.
  void start() {
    if (is_stopping_) return;  // forget() starts it again
    const base::BlockedSignals blocked;
    try {
      owner_pid_ = getpid();
      thread_ = std::thread([this] { run(); });
      pthread_setname_np(thread_.native_handle(), "verbena-service");
    } catch (const std::system_error& error) {
      base::log_warn(
          "service: cannot start the service thread: %s (errno %d). Check the process limits of the user and "
          "of the container",
          strerror(error.code().value()), error.code().value());
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!is_stopping_) {
      const auto [due_ns, next] =
          due_.empty() ? std::pair(kNever, static_cast<ProgressToken*>(nullptr)) : *due_.begin();
      const int64_t now_ns = base::monotonic_ns();
      if (due_ns == kNever) {
        changed_.wait(lock);
      } else if (due_ns > now_ns) {
        changed_.wait_for(lock, std::chrono::nanoseconds(due_ns - now_ns));  // a monotonic clock
      } else {
        reschedule(next, kNever);
        progress_idle(lock, next);
      }
    }
  }

  // The connection is not destroyed while running_ points to it.
  void progress_idle(std::unique_lock<std::mutex>& lock, ProgressToken* token) {
    running_ = token;
    lock.unlock();
    int64_t next_ns = kNever;
    ProgressToken::Turn free = ProgressToken::Turn::kNobody;
    if (token->turn_.compare_exchange_strong(free, ProgressToken::Turn::kService,
                                             std::memory_order_seq_cst)) {
      next_ns = token->progress_idle();
      token->turn_.store(ProgressToken::Turn::kNobody, std::memory_order_seq_cst);
      if (token->is_wanted()) next_ns = base::monotonic_ns();  // requested in the meantime
    } else {
      // Its data thread works on it, and wakes the service on leaving if there is a request.
      next_ns = token->find_next_try();
    }
    lock.lock();
    running_ = nullptr;
    if (is_known(token) && next_ns < token->due_ns_) reschedule(token, next_ns);
    changed_.notify_all();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::set<std::pair<int64_t, ProgressToken*>> due_;  // all known tokens, by due time
  ProgressToken* running_ = nullptr;
  std::thread thread_;
  pid_t owner_pid_ = 0;
  bool is_stopping_ = false;
};

void ProgressToken::wake() {
  Service::instance().wake(this);
}

// A token that the service has already dropped may be retired again after the service is gone.
void ProgressToken::retire() {
  if (is_known_.load(std::memory_order_relaxed)) Service::instance().forget(this);
}

}  // namespace verbena::transport
