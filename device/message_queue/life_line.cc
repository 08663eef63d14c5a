#include "device/message_queue/life_line.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/log.h"

namespace verbena::message_queue {
namespace {

// What the thread has been told so far.
constexpr uint32_t kStarting = 0, kHolding = 1, kWatching = 2, kStopping = 3;
constexpr size_t kMaxWatched = 127;  // of futex_waitv's 128, one is ours

// From headers of Linux 5.16, which not every system has that has the kernel.
constexpr long kFutexWaitv = 449;
constexpr uint32_t kFutex32 = 2, kFutexPrivate = 128;
struct FutexWait {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

static_assert(offsetof(LifeWord, next) == 0 && sizeof(robust_list) == sizeof(void*));

long call_futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

// A word that says that there is nobody to watch any more.
bool is_over(uint32_t holder) {
  return holder == 0 || (holder & FUTEX_OWNER_DIED) != 0;
}

}  // namespace

bool LifeLine::has_died(const LifeWord& word) {
  return (word.holder.load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0;
}

base::Outcome LifeLine::start(std::vector<LifeWord*> own, std::function<void()> notify) {
  if (thread_.joinable()) return {};  // the call before failed later on, and its caller tries again
  own_ = std::move(own);
  notify_ = std::move(notify);
  try {
    const base::BlockedSignals blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return base::fail_errno(base::Status::kSystem, error.code().value(),
                            "queue: cannot start the thread that watches for exited processes");
  }
  pthread_setname_np(thread_.native_handle(), "verbena-life");
  step_.wait(kStarting, std::memory_order_acquire);
  return {};
}

void LifeLine::watch(std::vector<LifeWord*> peers) {
  if (step_.load(std::memory_order_relaxed) == kWatching) return;  // as in start()
  peers_ = std::move(peers);
  if (peers_.size() > kMaxWatched) peers_.resize(kMaxWatched);
  step_.store(kWatching, std::memory_order_release);
  call_futex(step_, FUTEX_WAKE_PRIVATE, 1);
}

void LifeLine::stop() {
  if (!thread_.joinable()) return;
  step_.store(kStopping, std::memory_order_release);
  call_futex(step_, FUTEX_WAKE_PRIVATE, 1);
  thread_.join();
}

void LifeLine::run() {
  // The list is walked by the kernel when this thread ends with its process. In this thread nobody else has
  // robust futexes, which the C library would keep in a list of its own.
  robust_list_head held{};
  held.futex_offset = offsetof(LifeWord, holder);
  auto* const end = &held.list;
  held.list.next = end;
  for (LifeWord* const word : own_) {
    word->next = held.list.next;
    held.list.next = reinterpret_cast<robust_list*>(word);
  }
  syscall(SYS_set_robust_list, &held, sizeof(held));
  const auto self = static_cast<uint32_t>(gettid()) | FUTEX_WAITERS;
  for (LifeWord* const word : own_) word->holder.store(self, std::memory_order_release);
  // start() waits by the standard library, whose waiting is its own affair: it needs its own wake.
  step_.store(kHolding, std::memory_order_release);
  step_.notify_one();

  std::vector<LifeWord*> living;
  bool is_watching = false;
  for (;;) {
    const uint32_t step = step_.load(std::memory_order_acquire);
    if (step == kStopping) break;
    if (step == kWatching && !is_watching) {
      living = peers_;
      is_watching = true;
    }
    bool is_news = false;
    std::erase_if(living, [&](const LifeWord* word) {
      is_news = is_news || has_died(*word);
      return is_over(word->holder.load(std::memory_order_acquire));
    });
    if (is_news) notify_();
    if (living.empty() || !wait(living)) call_futex(step_, FUTEX_WAIT_PRIVATE, step);
  }
  // Not held any more, and only then not marked any more.
  held.list.next = end;
  for (LifeWord* const word : own_) {
    word->holder.store(0, std::memory_order_release);
    call_futex(word->holder, FUTEX_WAKE, INT32_MAX);
  }
  syscall(SYS_set_robust_list, nullptr, sizeof(held));
}

// Until one of the words, or our step, changes; false: this kernel cannot.
bool LifeLine::wait(const std::vector<LifeWord*>& living) {
  FutexWait waits[kMaxWatched + 1] = {};
  uint32_t count = 0;
  const auto add = [&](std::atomic<uint32_t>& word, uint32_t value, uint32_t flags) {
    waits[count++] = {value, reinterpret_cast<uintptr_t>(&word), flags, 0};
  };
  const uint32_t step = step_.load(std::memory_order_acquire);
  if (step == kStopping) return true;
  add(step_, step, kFutex32 | kFutexPrivate);
  for (LifeWord* const word : living) {
    const uint32_t holder = word->holder.load(std::memory_order_acquire);
    if (is_over(holder)) return true;
    add(word->holder, holder, kFutex32);
  }
  if (syscall(kFutexWaitv, waits, count, 0, nullptr, 0) >= 0) return true;
  return errno == EAGAIN || errno == EINTR;
}

}  // namespace verbena::message_queue
