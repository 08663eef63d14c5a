#include "transport/page_choice.h"

#include <algorithm>

#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kLeastEntriesPerPair = 2;
constexpr uint32_t kMinWindowPages = 32, kMaxWindowPages = 256;

}  // namespace

uint64_t find_threshold_bytes() {
  const auto wanted = static_cast<uint64_t>(base::parameters().unpack_threshold_bytes);
  return std::min<uint64_t>(wanted, kUnpackMaxSliceBytes);
}

// Eight of the longest staged messages, as NCCL keeps eight receives open; at least
// two, as a message may need half.
BouncePool::Wish choose_window() {
  const auto& parameters = base::parameters();
  const auto set = static_cast<uint32_t>(parameters.window_pages);
  if (set != 0) return {.wanted = set, .modest = set, .least = kLeastEntries};
  const auto page_bytes = static_cast<uint64_t>(parameters.page_bytes);
  const auto pages = static_cast<uint32_t>((find_threshold_bytes() + page_bytes - 1) / page_bytes);
  const uint32_t modest = std::max(2 * pages, kLeastEntries);
  return {.wanted = std::clamp(8 * pages, kMinWindowPages, std::max(modest, kMaxWindowPages)),
          .modest = modest,
          .least = kLeastEntries};
}

BouncePool::Wish divide(const BouncePool::Wish& wish, uint32_t pairs) {
  const auto share = [pairs](uint32_t entries) {
    return std::max((entries + pairs - 1) / pairs, kLeastEntriesPerPair);
  };
  return {share(wish.wanted), share(wish.modest), share(wish.least)};
}

BouncePool::Kind choose_page_pool(const Nic& nic) {
  switch (base::parameters().bounce) {
    case base::BouncePlace::kHost:
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kGpu:
      return BouncePool::Kind::kGpuPages;
    case base::BouncePlace::kAuto:
      break;
  }
  // A software device copies to GPU memory in microseconds, to host memory in less than one.
  const bool by_gpu = nic.supports_gpu_pointers && !nic.rails[0]->is_software();
  return by_gpu ? BouncePool::Kind::kGpuPages : BouncePool::Kind::kHostPages;
}

}  // namespace verbena::transport
