#include "softverbs/gpu/call_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "softverbs/shared/clock.h"

namespace verbena::softverbs {
namespace {

struct Slot {
  std::atomic<uint64_t> since_ns{0};  // 0: free
  std::atomic<const char*> name{nullptr};
  std::atomic<long> thread{0};
};
std::array<Slot, 64> slots;

}  // namespace

WatchedCall::WatchedCall(const char* name) : slot_(-1) {
  const uint64_t now_ns = read_clock_ns();
  for (size_t i = 0; i < slots.size(); ++i) {
    uint64_t free_since = 0;
    if (!slots[i].since_ns.compare_exchange_strong(free_since, now_ns)) continue;
    slots[i].thread.store(syscall(SYS_gettid));
    slots[i].name.store(name);
    slot_ = static_cast<int>(i);
    return;
  }
}

WatchedCall::~WatchedCall() {
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<size_t>(slot_)];
  slot.name.store(nullptr);
  slot.since_ns.store(0);
}

std::string describe_watched_calls(uint64_t least_ns) {
  std::string text;
  const uint64_t now_ns = read_clock_ns();
  for (const Slot& slot : slots) {
    const uint64_t since_ns = slot.since_ns.load();
    const char* const name = slot.name.load();
    if (since_ns == 0 || name == nullptr || now_ns - since_ns < least_ns || now_ns < since_ns) continue;
    if (!text.empty()) text += "; ";
    text += "thread " + std::to_string(slot.thread.load()) + " has not returned from " + name + " for " +
            show_seconds(now_ns - since_ns) +
            ". Probably another thread of this process holds a lock of the CUDA driver while that thread "
            "waits for the GPU. The first launch of a kernel, a graph launch and cudaFree hold such a lock";
  }
  return text;
}

std::string show_seconds(uint64_t ns) {
  char text[32];
  snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace verbena::softverbs
