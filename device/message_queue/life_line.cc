#include "device/message_queue/life_line.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/log.h"

namespace verbena::message_queue {
namespace {

// The steps that the thread has been asked to take.
constexpr uint32_t kStarting = 0, kHolding = 1, kWatching = 2, kStopping = 3;
constexpr size_t kMaxWatched = 127;  // futex_waitv takes 128 words, and one of them is step_

// Declared here as in the headers of Linux 5.16, because a system with that kernel may have older headers.
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

// Returns true if the holder of a word is gone, so that the word need not be watched.
bool is_over(uint32_t holder) {
  return holder == 0 || (holder & FUTEX_OWNER_DIED) != 0;
}

}  // namespace

bool LifeLine::has_died(const LifeWord& word) {
  return (word.holder.load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0;
}

base::Outcome LifeLine::start(std::vector<LifeWord*> own, std::function<void()> notify) {
  // An earlier call has already started the thread, but the caller has failed later and retries.
  if (thread_.joinable()) return {};
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
  // Linux walks the list when this thread ends with its process. The C library would replace the list by its
  // own, but only in threads that use its robust mutexes, and this thread does not.
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
  // start() waits by std::atomic's wait(), which a plain futex call would not wake.
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
  // The thread leaves in order: first, it makes sure that Linux no longer marks the words; then it removes
  // itself as the holder.
  held.list.next = end;
  for (LifeWord* const word : own_) {
    word->holder.store(0, std::memory_order_release);
    call_futex(word->holder, FUTEX_WAKE, INT32_MAX);
  }
  syscall(SYS_set_robust_list, nullptr, sizeof(held));
}

// Waits until one of the words, or step_, changes. Returns false if this kernel does not support that.
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
