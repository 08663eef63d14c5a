#include "base/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <thread>
#include <unordered_map>

#include "base/blocked_signals.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/wake_event.h"

namespace verbena::base {
namespace {

constexpr int kBatchEvents = 32;

// The user data of an epoll event: the descriptor, and in the upper half the number of the watch, which
// counts up. So an event that was fetched before its descriptor was removed matches no watch, even if the
// descriptor number is in use again.
constexpr int kWatchShift = 32;
constexpr uint64_t kStopId = UINT64_MAX;  // the eventfd that stops the thread; no descriptor is -1

int descriptor_of(uint64_t id) {
  return static_cast<int>(static_cast<uint32_t>(id));
}

uint32_t epoll_mask(Interest interest) {
  // Edge triggered, because a closed peer stays closed: a level-triggered event would repeat until unwatch().
  if (interest == Interest::kPeerClosed) return EPOLLRDHUP | EPOLLET;
  if (interest == Interest::kDataOrRoom) return EPOLLIN | EPOLLOUT | EPOLLET;
  return interest == Interest::kNewData ? EPOLLIN | EPOLLET : EPOLLIN | EPOLLRDHUP;
}

}  // namespace

// The thread and its epoll set. It lives while at least one descriptor is watched.
class EventLoop::Watcher {
 public:
  static Result<std::unique_ptr<Watcher>> start();
  ~Watcher();

  Outcome add(int fd, Interest interest, Callback callback, void* context);
  void remove(int fd);
  size_t count() const;

 private:
  struct Entry {
    uint64_t id;
    Callback callback;
    void* context;
  };

  Outcome add_to_epoll(int fd, uint32_t mask, uint64_t id);
  void run();
  void dispatch(uint64_t id);

  FileDescriptor epoll_;
  WakeEvent stop_;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable callback_ended_;
  std::unordered_map<int, Entry> entries_;  // by descriptor
  uint64_t watches_ = 0;                    // made so far
  uint64_t running_id_ = kStopId;           // the watch whose callback runs now; kStopId for none
};

Result<std::unique_ptr<EventLoop::Watcher>> EventLoop::Watcher::start() {
  auto watcher = std::make_unique<Watcher>();
  watcher->epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!watcher->epoll_)
    return fail_errno(Status::kSystem, errno, "events: cannot create the watcher's epoll descriptor");
  auto stop = WakeEvent::create("events");
  if (!stop) return stop.error();
  watcher->stop_ = std::move(*stop);
  const Outcome added = watcher->add_to_epoll(watcher->stop_.fd(), EPOLLIN, kStopId);
  if (!added) return added.error();
  try {
    const BlockedSignals blocked;
    watcher->thread_ = std::thread([target = watcher.get()] { target->run(); });
  } catch (const std::system_error& error) {
    return fail_errno(Status::kSystem, error.code().value(), "events: cannot start the watcher thread");
  }
  pthread_setname_np(watcher->thread_.native_handle(), "verbena-events");
  return watcher;
}

EventLoop::Watcher::~Watcher() {
  if (!thread_.joinable()) return;
  stop_.ring();
  thread_.join();
}

Outcome EventLoop::Watcher::add_to_epoll(int fd, uint32_t mask, uint64_t id) {
  epoll_event event{};
  event.events = mask;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return fail_errno(Status::kSystem, errno, "events: cannot watch descriptor %d", fd);
}

Outcome EventLoop::Watcher::add(int fd, Interest interest, Callback callback, void* context) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = watches_++ << kWatchShift | static_cast<uint32_t>(fd);
  const Outcome added = add_to_epoll(fd, epoll_mask(interest), id);
  if (added) entries_[fd] = {id, callback, context};
  return added;
}

void EventLoop::Watcher::remove(int fd) {
  std::unique_lock lock(mutex_);
  const auto gone = entries_.extract(fd);
  if (gone.empty()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  callback_ended_.wait(lock, [&] { return running_id_ != gone.mapped().id; });
}

size_t EventLoop::Watcher::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

void EventLoop::Watcher::run() {
  epoll_event events[kBatchEvents];
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events, kBatchEvents, -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kStopId) return;
      dispatch(events[i].data.u64);
    }
  }
}

void EventLoop::Watcher::dispatch(uint64_t id) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(descriptor_of(id));
    if (found == entries_.end() || found->second.id != id) return;
    entry = found->second;
    running_id_ = id;
  }
  entry.callback(entry.context);
  const std::lock_guard lock(mutex_);
  running_id_ = kStopId;
  callback_ended_.notify_all();
}

EventLoop::EventLoop() = default;
EventLoop::~EventLoop() = default;

EventLoop& EventLoop::instance() {
  struct Latest {
    std::atomic<EventLoop*> loop{nullptr};
    ~Latest() {
      if (EventLoop* const last = loop.load(); last != nullptr && last->process_.is_here()) delete last;
    }
  };
  static Latest latest;
  EventLoop* loop = latest.loop.load(std::memory_order_acquire);
  // The parent's loop is not touched, whether or not it is locked.
  while (loop == nullptr || !loop->process_.is_here()) {
    auto* const made = new EventLoop;
    if (latest.loop.compare_exchange_strong(loop, made)) return *made;
    delete made;
  }
  return *loop;
}

Outcome EventLoop::watch(int fd, Interest interest, Callback callback, void* context) {
  const std::lock_guard lock(lifecycle_mutex_);
  if (watcher_ == nullptr) {
    Result<std::unique_ptr<Watcher>> started = Watcher::start();
    if (!started) return started.error();
    watcher_ = std::move(*started);
  }
  const Outcome added = watcher_->add(fd, interest, callback, context);
  if (watcher_->count() == 0) watcher_.reset();
  return added;
}

void EventLoop::unwatch(int fd) {
  const std::lock_guard lock(lifecycle_mutex_);
  if (watcher_ == nullptr) return;
  watcher_->remove(fd);
  if (watcher_->count() == 0) watcher_.reset();
}

size_t EventLoop::count_watched() const {
  const std::lock_guard lock(lifecycle_mutex_);
  return watcher_ == nullptr ? 0 : watcher_->count();
}

}  // namespace verbena::base
