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

// A page takes what a datagram carries: an MTU, or more where a datagram may be longer than one. To and from
// memory of a GPU each is a copy, which takes as long as many times the bytes of an MTU.
uint32_t choose_page_bytes(const Nic& nic) {
  const auto is_long = [](const verbs::Device* device) {
    return device->long_datagram_bytes() >= PagePool::kMostPageBytes + sizeof(PacketHeader);
  };
  if (!std::all_of(nic.rails.begin(), nic.rails.end(), is_long)) return PagePool::kLeastPageBytes;
  if (base::parameter_origin("VERBENA_PAGE_BYTES") != base::kDefaultOrigin)
    return static_cast<uint32_t>(base::parameters().page_bytes);
  return base::find_current_gpu() != base::kNoGpu ? PagePool::kMostPageBytes : PagePool::kLeastPageBytes;
}

// Threads of hosts carry its packets: a round trip is as long as one of them may have to wait, which is no
// queue of a network, and a packet takes what the CPU needs for it.
void fit_software(EngineOptions& options) {
  options.packet_ns = 20'000;
  options.grant_patience_ns = 80'000'000;
  options.pages.credits = 1024;
  options.window_packets = RecordTable::kMost - 128;
  options.loss = {
      .same_path = 400'000, .across_paths = 1'000'000, .least_timeout = 20'000'000, .ack_delay = 20'000};
}

// All that there are.
uint64_t count_rails(const NicRegistry& nics) {
  std::set<const verbs::Device*> rails;
  for (int i = 0; i < nics.size(); ++i) rails.insert(nics.find(i)->rails.begin(), nics.find(i)->rails.end());
  return std::max<uint64_t>(rails.size(), 1);
}

// `sharing_rails`: among which the pages are divided where kernels unpack; 0: nothing is unpacked.
// Without memory of a GPU no page is short.
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
    // An eighth at most. To write into memory of a GPU and tell of it takes longer than to copy a few bytes
    // there from the host's, which a short message waits for.
    constexpr uint64_t kShortEachBytes = kShortBytes + PagePool::kLineBytes;
    const uint64_t sharing = std::max<uint64_t>(sharing_rails, 1);
    options.pages.short_pages =
        options.rails * static_cast<uint32_t>(std::min<uint64_t>(kShortPagesPerRail,
                                                                 most_bytes / 8 / sharing / kShortEachBytes));
    most_bytes -= options.pages.short_pages / options.rails * sharing * kShortEachBytes;
  }
  uint64_t pages = std::min<uint64_t>(most_bytes / each_bytes, uint64_t{kPagesPerRail} * options.rails);
  // What kernels have not unpacked yet takes as many more as there may be, the rails' fair share each.
  if (sharing_rails != 0) pages = most_bytes / each_bytes / sharing_rails * options.rails;
  for (const verbs::Device* device : nic.rails) {
    pages = std::min<uint64_t>(pages, device->max_srq_entries());
    pages = std::min<uint64_t>(pages, device->max_cq_entries() / 2);
    if (device->is_software()) fit_software(options);
  }
  // Of long pages few are enough on their way, and there are few.
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
