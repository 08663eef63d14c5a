#include "transport/datagram/engine_options.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/parameters.h"
#include "transport/datagram/page_pool.h"

namespace verbena::transport::datagram {

using namespace protocol::datagram;

namespace {

constexpr uint32_t kPagesPerRail = 2048;
constexpr uint32_t kLeastCreditBytes = 8 << 20, kEnoughPages = 256;
constexpr uint32_t kShortPagesPerRail = 256;

// Chooses the length of a page: one MTU, or more if a datagram may be longer than an MTU. To and from GPU
// memory each page is a separate copy. The fixed time of such a copy is as long as the transfer of many
// times the bytes of an MTU.
uint32_t choose_page_bytes(const Nic& nic) {
  const auto is_long = [](const verbs::Device* device) {
    return device->long_datagram_bytes() >= PagePool::kMostPageBytes + sizeof(PacketHeader);
  };
  if (!std::all_of(nic.rails.begin(), nic.rails.end(), is_long)) return PagePool::kLeastPageBytes;
  if (base::parameter_origin("VERBENA_PAGE_BYTES") != base::kDefaultOrigin)
    return static_cast<uint32_t>(base::parameters().page_bytes);
  return base::find_current_gpu() != base::kNoGpu ? PagePool::kMostPageBytes : PagePool::kLeastPageBytes;
}

// Options for software devices, whose packets are moved by CPU threads. A long round trip then means that a
// thread had to wait for a CPU, not that a network queue is long. The time for a packet is the CPU time.
void fit_software(EngineOptions& options) {
  options.packet_ns = 20'000;
  options.grant_patience_ns = 80'000'000;
  options.pages.credits = 1024;
  options.window_packets = RecordTable::kMost - 128;
  options.loss = {
      .same_path = 400'000, .across_paths = 1'000'000, .least_timeout = 20'000'000, .ack_delay = 20'000};
}

// Counts the rails of all devices.
uint64_t count_rails(const NicRegistry& nics) {
  std::set<const verbs::Device*> rails;
  for (int i = 0; i < nics.size(); ++i) rails.insert(nics.find(i)->rails.begin(), nics.find(i)->rails.end());
  return std::max<uint64_t>(rails.size(), 1);
}

// `sharing_rails` is the number of rails among which the pages are divided if kernels unpack; 0 without
// unpacking. Pages in host memory need no small-message buffers.
EngineOptions make_options(const Nic& nic, uint64_t sharing_rails, uint32_t page_bytes, uint32_t random) {
  EngineOptions options;
  options.rails = static_cast<uint32_t>(nic.rails.size());
  options.random = random;
  options.silence_ns = base::parameters().failover_timeout_ms * base::kNsPerMs;
  const int64_t speed_mbps = std::max<uint32_t>(nic.speed_mbps, 1);
  options.fit(int64_t{page_bytes} * 8 * 1000 / speed_mbps);
  const uint64_t each_bytes = page_bytes + PagePool::kLineBytes;
  auto most_bytes = static_cast<uint64_t>(base::parameters().bounce_bytes);
  if (takes_gpu_pages(nic, sharing_rails != 0)) {
    // At most an eighth of the pages. Small-message buffers are in host memory: a short message is faster if
    // the CPU copies a few bytes than if the device writes to GPU memory and reports it.
    constexpr uint64_t kShortEachBytes = kShortBytes + PagePool::kLineBytes;
    const uint64_t sharing = std::max<uint64_t>(sharing_rails, 1);
    options.pages.short_pages =
        options.rails * static_cast<uint32_t>(std::min<uint64_t>(kShortPagesPerRail,
                                                                 most_bytes / 8 / sharing / kShortEachBytes));
    most_bytes -= options.pages.short_pages / options.rails * sharing * kShortEachBytes;
  }
  uint64_t pages = std::min<uint64_t>(most_bytes / each_bytes, uint64_t{kPagesPerRail} * options.rails);
  // Pages of messages that kernels have not unpacked yet come in addition: as many as the setting allows,
  // divided equally among the rails.
  if (sharing_rails != 0) pages = most_bytes / each_bytes / sharing_rails * options.rails;
  for (const verbs::Device* device : nic.rails) {
    pages = std::min<uint64_t>(pages, device->max_srq_entries());
    pages = std::min<uint64_t>(pages, device->max_cq_entries() / 2);
    if (device->is_software()) fit_software(options);
  }
  // If pages are long, there are few of them, and few packets in flight are enough.
  if (page_bytes != PagePool::kLeastPageBytes)
    options.pages.credits =
        std::max(options.pages.credits * PagePool::kLeastPageBytes, kLeastCreditBytes) / page_bytes;
  options.pages.pages = static_cast<uint32_t>(pages);
  options.pages.rails = options.rails;
  return options;
}

}  // namespace

uint32_t find_mtu_bytes(const Nic& nic) {
  uint32_t least = UINT32_MAX;
  for (verbs::Device* device : nic.rails) {
    const verbs::PortAddress address = device->refresh_address().port;
    if (address.link_layer == 0) continue;
    least = std::min(least, 128U << address.mtu);
  }
  return least == UINT32_MAX ? 0 : std::min(least, PagePool::kLeastPageBytes);
}

bool wants_gpu_pages(const Nic& nic) {
  return nic.rails[0]->is_softverbs() && nic.supports_gpu_pointers &&
         base::parameters().bounce != base::BouncePlace::kHost;
}

bool takes_gpu_pages(const Nic& nic, bool unpacks) {
  const bool is_asked = unpacks || base::parameters().bounce == base::BouncePlace::kGpu;
  return is_asked && wants_gpu_pages(nic) && base::find_current_gpu() != base::kNoGpu;
}

EngineShape choose_shape(const Nic& nic, const NicRegistry* nics, bool unpacks, uint32_t random) {
  const uint64_t sharing_rails = unpacks ? count_rails(*nics) : 0;
  for (uint32_t page_bytes = choose_page_bytes(nic);; page_bytes /= 2) {
    EngineOptions options = make_options(nic, sharing_rails, page_bytes, random);
    const bool are_few = options.pages.pages < kEnoughPages * options.rails;
    if (page_bytes == PagePool::kLeastPageBytes || !are_few) return {options, page_bytes};
  }
}

}  // namespace verbena::transport::datagram
