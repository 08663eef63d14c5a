#include "softverbs/engine/rail_worker.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/own_thread.h"

namespace verbena::softverbs {

void RailWorker::add(Qp& qp, uint64_t delay_ns) {
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({&qp, delay_ns == 0 ? 0 : read_clock_ns() + delay_ns});
  }
  tell();
}

void RailWorker::run_soon(std::function<void()> chore) {
  {
    std::lock_guard lock(mutex_);
    chores_.push_back(std::move(chore));
    start_locked();
  }
  tell();
}

int RailWorker::start() {
  std::lock_guard lock(mutex_);
  return start_locked();
}

int RailWorker::start_locked() {
  const int error = is_started_ ? 0 : start_own_thread([this] { work(); });
  is_started_ = error == 0;
  return error;
}

// Notifies without the mutex: a polling worker would continue at once, and sleep until the mutex is free.
void RailWorker::tell() {
  additions_.fetch_add(1);
  changed_.notify_all();
}

void RailWorker::hurry(Qp& qp) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.qp == &qp) entry.due_ns = 0;
  }
  changed_.notify_all();
}

void RailWorker::forget(Qp& qp) {
  std::unique_lock lock(mutex_);
  const auto erase = [&] { std::erase_if(entries_, [&](const Entry& entry) { return entry.qp == &qp; }); };
  erase();
  changed_.wait(lock, [&] { return current_ != &qp; });
  erase();  // it may have been added again in the meantime
}

// Returns the next queue pair to run, or null after a wait, when the caller should check again.
Qp* RailWorker::take_due(std::unique_lock<std::mutex>& lock) {
  while (!chores_.empty()) {
    const auto chore = std::move(chores_.front());
    chores_.pop_front();
    lock.unlock();
    chore();
    lock.lock();
  }
  if (entries_.empty()) {
    rest(lock);
    return nullptr;
  }
  const auto first = std::min_element(entries_.begin(), entries_.end(),
                                      [](const Entry& a, const Entry& b) { return a.due_ns < b.due_ns; });
  const uint64_t now_ns = read_clock_ns();
  if (first->due_ns > now_ns) {
    changed_.wait_for(lock, std::chrono::nanoseconds(first->due_ns - now_ns));
    return nullptr;
  }
  Qp* qp = first->qp;
  entries_.erase(first);
  return qp;
}

// Polls for a while before it sleeps, because a copy to a GPU is often followed by another one soon.
void RailWorker::rest(std::unique_lock<std::mutex>& lock) {
  constexpr auto kHousekeeping = std::chrono::milliseconds(100);
  const uint32_t seen = additions_.load();
  lock.unlock();
  const uint64_t end_ns = read_clock_ns() + get_config().worker_spin_ns;
  while (additions_.load(std::memory_order_relaxed) == seen && read_clock_ns() < end_ns) pause_briefly();
  const bool has_imports =
      additions_.load() == seen && Process::get()->imports.drop_stale(Process::get()->copier);
  lock.lock();
  if (!entries_.empty() || !chores_.empty()) return;
  if (has_imports) {
    changed_.wait_for(lock, kHousekeeping);
  } else {
    changed_.wait(lock);
  }
}

void RailWorker::work() {
  pthread_setname_np(pthread_self(), "softverbs-rail");
  constexpr unsigned long kTimerSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  std::unique_lock lock(mutex_);
  for (;;) {
    Qp* qp = take_due(lock);
    if (qp == nullptr) continue;
    current_ = qp;
    lock.unlock();
    run_send_queue(*qp, Runner::kWorker);
    lock.lock();
    current_ = nullptr;
    changed_.notify_all();
  }
}

RailWorker& get_worker(uint32_t device) {
  return Process::get()->workers[device];
}

}  // namespace verbena::softverbs
