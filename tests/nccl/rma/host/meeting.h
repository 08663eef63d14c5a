// What the ranks of a run share besides the network: handles, steps that all reach, what each has to say.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <new>

#include "common/clock.h"
#include "nccl/abi.h"

namespace verbena::nccl::testing {

constexpr uint32_t kMaxRanks = 16;

struct RankReport {
  std::atomic<bool> has_ended{false};
  std::atomic<uint64_t> messages{0}, wrong{0}, calls{0}, failed_queue_pairs{0};
  std::atomic<uint32_t> lost_peers{0};  // a bit for each
  std::atomic<int64_t> loss_ms{-1};     // from the death of a peer to its error
  std::array<char, 256> problem{};
};

// Lies in memory that the processes of a run inherit.
class Meeting {
 public:
  static Meeting& make() {
    void* const memory =
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Meeting;
  }

  // Until all `ranks` have come so often as this one; false after `seconds`. `meanwhile` is called again and
  // again.
  bool meet(uint32_t ranks, uint64_t* times, double seconds, const std::function<void()>& meanwhile = {}) {
    const uint64_t due = ++*times * ranks;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    const int64_t deadline_ns = tools::now_ns() + static_cast<int64_t>(seconds * 1e9);
    while (arrived_.load(std::memory_order_acquire) < due) {
      if (tools::now_ns() > deadline_ns) return false;
      if (meanwhile) {
        meanwhile();
      } else {
        usleep(200);
      }
    }
    return true;
  }

  std::array<std::array<char, abi::kHandleBytes>, kMaxRanks> handles{};
  std::array<RankReport, kMaxRanks> reports{};
  std::atomic<int64_t> death_ns{0};

 private:
  std::atomic<uint64_t> arrived_{0};
};

}  // namespace verbena::nccl::testing
