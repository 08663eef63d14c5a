#include "transport/setup/page_choice.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kMinPagesPerPair = 2;  // of a window that the user has set
constexpr uint32_t kMinWindowPages = 32, kMaxWindowPages = 256;
constexpr uint32_t kDirectEntries = 32;  // a whole ring of messages of one chunk

}  // namespace

uint64_t find_threshold_bytes() {
  const auto wanted = static_cast<uint64_t>(base::parameters().unpack_threshold_bytes);
  return std::min<uint64_t>(wanted, kUnpackMaxSliceBytes);
}

// Eight of the longest staged messages, as NCCL keeps eight receives open; at least two, as a message may
// need half. Shared by the queue pairs, but any of them may carry a direct message's whole chunk.
BouncePool::WindowRequest choose_window(uint32_t pairs) {
  const auto share = [pairs](uint32_t pages, uint32_t least) {
    return std::max((pages + pairs - 1) / pairs, least);
  };
  const auto& parameters = base::parameters();
  if (parameters.window_pages != 0) {
    const uint32_t set = share(static_cast<uint32_t>(parameters.window_pages), kMinPagesPerPair);
    return {.wanted = set, .modest = set, .least = std::min(set, kMinEntries)};
  }
  const auto page_bytes = static_cast<uint64_t>(parameters.page_bytes);
  const auto pages = static_cast<uint32_t>((find_threshold_bytes() + page_bytes - 1) / page_bytes);
  return {.wanted = share(std::clamp(8 * pages, kMinWindowPages, std::max(2 * pages, kMaxWindowPages)),
                          kMinEntries),
          .modest = share(2 * pages, kMinEntries),
          .least = kMinEntries};
}

// What there is in one receive queue is enough for all, as long as that gives each what NCCL can use.
BouncePool::WindowRequest choose_direct_window(uint32_t connections) {
  const uint32_t share = BouncePool::kBareQueueEntries / std::max(connections, 1U);
  const uint32_t entries = std::clamp(share, kMinEntries, kDirectEntries);
  return {.wanted = entries, .modest = entries, .least = kMinEntries};
}

BouncePool::Kind choose_page_pool(const Nic& nic) {
  switch (base::parameters().bounce) {
    case base::BouncePlace::kHost:
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kGpu:
      // The pool's pages are registered by their addresses.
      if (nic.supports_gpu_pointers) return BouncePool::Kind::kGpuPages;
      base::log_info("device %s: takes no addresses of GPU memory: bounce pages are in host memory",
                     nic.name.c_str());
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kAuto:
      break;
  }
  // A software device copies to GPU memory in microseconds, to host memory in less than one.
  const bool by_gpu = nic.supports_gpu_pointers && !nic.rails[0]->is_software();
  return by_gpu ? BouncePool::Kind::kGpuPages : BouncePool::Kind::kHostPages;
}

}  // namespace verbena::transport
