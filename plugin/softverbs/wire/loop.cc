#include "softverbs/wire/loop.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/own_thread.h"
#include "softverbs/wire/descriptors.h"

namespace verbena::softverbs::wire {
namespace {

// For this time after a poll, the poller is expected to poll again, and the loop's thread leaves the work to
// it.
constexpr uint64_t kPollerNs = 200'000;
constexpr timespec kStandBack{0, 300'000};

thread_local const Loop* turn_of_thread = nullptr;
thread_local const Loop* thread_of_loop = nullptr;

}  // namespace

bool Loop::open() {
  epoll_ = keep(epoll_create1(EPOLL_CLOEXEC));
  wake_ = keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // the wake-up
  if (epoll_ >= 0 && wake_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) return true;
  const int error = errno;
  drop(epoll_);
  drop(wake_);
  errno = error;
  return false;
}

int Loop::start() {
  const int error = is_started_ ? 0 : start_own_thread([this] { work(); });
  is_started_ = error == 0;
  return error;
}

bool Loop::add(int fd, uint32_t events, Watched& watched) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watched;
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Loop::change(int fd, uint32_t events, Watched& watched) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watched;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void Loop::remove(int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

void Loop::post(std::function<void()> task) {
  {
    std::lock_guard lock(tasks_mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > 1) return;  // an earlier task has already written the wake-up
  }
  if (is_mine()) return;  // run() checks for tasks again before it ends
  eventfd_write(wake_, 1);
}

bool Loop::is_mine() const {
  return turn_of_thread == this;
}

bool Loop::is_own_thread() const {
  return thread_of_loop == this;
}

void Loop::keep_house() {
  if (!housekeeping) return;
  const uint64_t now_ns = read_clock_ns();
  if (now_ns < housekeeping_due_ns_) return;
  housekeeping_due_ns_ = now_ns + kHousekeepingMs * uint64_t{1'000'000};
  housekeeping();
}

bool Loop::run() {
  constexpr int kEvents = 32;
  turn_of_thread = this;
  retired_.clear();
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_, events, kEvents, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != nullptr) {
      static_cast<Watched*>(events[i].data.ptr)->on_ready(events[i].events);
    } else {
      eventfd_t ignored;
      eventfd_read(wake_, &ignored);
      if (!is_own_thread() && wants_thread_.load())
        eventfd_write(wake_, 1);  // this task was for the loop's thread
    }
  }
  bool was_busy = count > 0;
  keep_house();
  for (;;) {
    std::vector<std::function<void()>> tasks;
    {
      std::lock_guard lock(tasks_mutex_);
      tasks.swap(tasks_);
      if (is_own_thread()) {
        tasks.insert(tasks.end(), thread_tasks_.begin(), thread_tasks_.end());
        thread_tasks_.clear();
      }
    }
    tasks.insert(tasks.end(), at_end_.begin(), at_end_.end());
    at_end_.clear();
    if (tasks.empty()) break;
    was_busy = true;
    for (const auto& task : tasks) task();
  }
  turn_of_thread = nullptr;
  return was_busy;
}

bool Loop::has_poller() const {
  return !wants_thread_.load(std::memory_order_relaxed) &&
         read_clock_ns() - last_poll_ns_.load(std::memory_order_relaxed) < kPollerNs;
}

void Loop::post_to_thread(std::function<void()> task) {
  {
    std::lock_guard lock(tasks_mutex_);
    thread_tasks_.push_back(std::move(task));
  }
  if (wants_thread_.exchange(true)) return;
  eventfd_write(wake_, 1);
}

void Loop::poll() {
  last_poll_ns_.store(read_clock_ns(), std::memory_order_relaxed);
  if (wants_thread_.load(std::memory_order_relaxed) || !turn_.try_lock()) return;
  run();
  turn_.unlock();
}

void Loop::quiesce() {
  quiescers_.fetch_add(1);
  turn_.lock();
  turn_.unlock();
  quiescers_.fetch_sub(1);
}

// Sleeps until there is work.
void Loop::sleep() {
  if (has_poller()) {
    pollfd wake{wake_, POLLIN, 0};
    ppoll(&wake, 1, &kStandBack, nullptr);
    return;
  }
  epoll_event event;
  epoll_wait(epoll_, &event, 1, housekeeping ? kHousekeepingMs : -1);
}

void Loop::work() {
  pthread_setname_np(pthread_self(), "softverbs-wire");
  constexpr unsigned long kTimerSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  thread_of_loop = this;
  uint64_t last_busy_ns = 0;
  for (;;) {
    if (has_poller() || read_clock_ns() - last_busy_ns > get_config().worker_spin_ns) sleep();
    while (quiescers_.load() != 0) sched_yield();
    std::lock_guard lock(turn_);
    wants_thread_.store(false, std::memory_order_relaxed);
    if (run()) last_busy_ns = read_clock_ns();
  }
}

}  // namespace verbena::softverbs::wire
