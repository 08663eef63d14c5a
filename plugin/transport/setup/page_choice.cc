#include "transport/setup/page_choice.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kMinPagesPerPair = 2;  // minimum, if the user sets the window
constexpr uint32_t kMinWindowPages = 32, kMaxWindowPages = 256;
constexpr uint32_t kDirectEntries = 32;  // a full ring of messages of one chunk each
// For softverbs, which copies to GPU memory page by page. A copy takes microseconds whatever its length, and
// pages that are consecutive on both sides need only one copy.
constexpr uint64_t kLongMessageBytes = 65536;
constexpr uint32_t kRunPageBytes = 65536;
constexpr uint64_t kRunMessageBytes = 1 << 20;  // the default length of a slice of NCCL's buffers

BouncePool::Kind choose_kind(const Nic& nic) {
  if (!std::ranges::all_of(nic.rails, &verbs::Device::receives_to_gpu)) {
    base::log_info(
        "device %s: bounce pages are in host memory, because the device's libmlx5 lacks mlx5dv_create_qp()",
        nic.name.c_str());
    return BouncePool::Kind::kHostPages;
  }
  switch (base::parameters().bounce) {
    case base::BouncePlace::kHost:
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kGpu:
      // The pages of the pool are registered by their addresses.
      if (nic.supports_gpu_pointers) return BouncePool::Kind::kGpuPages;
      base::log_info("device %s does not accept addresses of GPU memory, so bounce pages are in host memory",
                     nic.name.c_str());
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kAuto:
      break;
  }
  // A software device needs microseconds to copy to GPU memory, and less than one to copy to host memory.
  // This matters for short messages. For long messages GPU memory is better, because a kernel reads its own
  // GPU's memory ten times as fast as host memory.
  const bool is_fast = !nic.rails[0]->is_software() || find_threshold_bytes() > kLongMessageBytes;
  return nic.supports_gpu_pointers && is_fast ? BouncePool::Kind::kGpuPages : BouncePool::Kind::kHostPages;
}

}  // namespace

uint64_t find_threshold_bytes() {
  const auto wanted = static_cast<uint64_t>(base::parameters().unpack_threshold_bytes);
  return std::min<uint64_t>(wanted, kUnpackMaxSliceBytes);
}

// Returns a window for eight of the longest staged messages, because NCCL keeps eight receives open, and for
// at least two, because a message may need half of it. The queue pairs share the window, but each one needs
// enough entries for all chunks of a direct message.
BouncePool::WindowRequest choose_window(uint32_t pairs, uint32_t page_bytes, bool wants_run) {
  const auto share = [pairs](uint32_t pages, uint32_t least) {
    return std::max((pages + pairs - 1) / pairs, least);
  };
  const auto& parameters = base::parameters();
  if (parameters.window_pages != 0) {
    const uint32_t set = share(static_cast<uint32_t>(parameters.window_pages), kMinPagesPerPair);
    return {.wanted = set, .modest = set, .least = std::min(set, kMinEntries), .wants_run = wants_run};
  }
  const auto count_pages = [page_bytes](uint64_t bytes) {
    return static_cast<uint32_t>((bytes + page_bytes - 1) / page_bytes);
  };
  const uint32_t pages = count_pages(find_threshold_bytes());
  if (wants_run) {  // a run is not shared with other connections, so it is no longer than necessary
    const uint32_t slice = std::min(pages, count_pages(kRunMessageBytes));
    return {.wanted = share(std::min(8 * slice, 2 * pages), kMinEntries),
            .modest = share(2 * slice, kMinEntries),
            .least = kMinEntries,
            .wants_run = true};
  }
  return {.wanted = share(std::clamp(8 * pages, kMinWindowPages, std::max(2 * pages, kMaxWindowPages)),
                          kMinEntries),
          .modest = share(2 * pages, kMinEntries),
          .least = kMinEntries};
}

// Divides the entries of one receive queue among all connections, if this gives each one as many as NCCL can
// use.
BouncePool::WindowRequest choose_direct_window(uint32_t connections) {
  const uint32_t share = BouncePool::kBareQueueEntries / std::max(connections, 1U);
  const uint32_t entries = std::clamp(share, kMinEntries, kDirectEntries);
  return {.wanted = entries, .modest = entries, .least = kMinEntries};
}

PageChoice choose_pages(const Nic& nic) {
  PageChoice choice{.kind = choose_kind(nic),
                    .page_bytes = static_cast<uint32_t>(base::parameters().page_bytes)};
  if (choice.kind != BouncePool::Kind::kGpuPages || !nic.rails[0]->is_softverbs()) return choice;
  choice.wants_runs = true;
  const bool is_set = base::parameter_origin("VERBENA_PAGE_BYTES") != base::kDefaultOrigin;
  if (!is_set && find_threshold_bytes() > kLongMessageBytes) choice.page_bytes = kRunPageBytes;
  return choice;
}

}  // namespace verbena::transport
