#include "softverbs/engine/near_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "softverbs/engine/objects.h"

namespace verbena::softverbs {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14

constexpr uint64_t kMostMappedBytes = 16 << 20;  // maximum to map at a time, whatever length a peer claims
// With more peers, most get few messages, so only the used part of their memory is mapped.
constexpr uint32_t kFewPeers = 32;

// Maps all pages of the registration around this offset when it is first used. Otherwise each page would
// cause a fault, and delay a message.
[[gnu::cold, gnu::noinline]] void map_pages(PeerProcess& peer, uint64_t offset, uint32_t key) {
  const SharedMr& mr = peer.segment->mr(get_key_index(key));
  const uint64_t address = mr.address.get() - peer.segment->header().base;
  const bool is_there = address <= offset && offset - address < mr.length.get();
  const uint64_t begin = is_there ? std::max(address, kArena) : offset;
  const uint64_t bytes = is_there ? std::min(mr.length.get(), kMostMappedBytes) : 1;
  const uint64_t first = begin / kNearBlockBytes;
  const uint64_t last = std::max(std::min(begin + bytes, kSegmentBytes) - 1, offset) / kNearBlockBytes;
  for (uint64_t block = first; block <= last; ++block)
    peer.near_blocks[block / 64].fetch_or(uint64_t{1} << block % 64);
  if (Process::get()->count_peers() > kFewPeers) return;
  madvise(peer.segment->at<uint8_t>(first * kNearBlockBytes), (last + 1 - first) * kNearBlockBytes,
          kPopulateWrite);
}

}  // namespace

uint8_t* find_near(PeerProcess& peer, uint64_t address, uint64_t bytes, uint32_t key) {
  const uint64_t offset = address - peer.segment->header().base;
  const bool is_inside = offset >= kArena && offset < kSegmentBytes && bytes <= kSegmentBytes - offset;
  if (!is_inside) return nullptr;
  const uint64_t block = offset / kNearBlockBytes;
  if ((peer.near_blocks[block / 64].load(std::memory_order_relaxed) >> block % 64 & 1) == 0) [[unlikely]]
    map_pages(peer, offset, key);
  return peer.segment->at<uint8_t>(offset);
}

}  // namespace verbena::softverbs

using verbena::softverbs::Process;

// Returns memory filled with zeros, aligned to 512 bytes, or to a page if it has 4 KiB or more; nullptr if
// there is not enough memory.
SOFTVERBS_API void* softverbs_take_memory(size_t bytes) try {
  Process* const process = Process::get();
  const uint64_t offset = process == nullptr || bytes == 0 ? 0 : process->arena().allocate(bytes);
  return offset == 0 ? nullptr : process->segment().at<uint8_t>(offset);
}
SOFTVERBS_CATCH

// Call this after all registrations of the memory were deregistered.
SOFTVERBS_API void softverbs_give_back_memory(void* memory) {
  Process* const process = Process::get();
  if (process == nullptr || memory == nullptr) return;
  const auto offset = static_cast<uint8_t*>(memory) - process->segment().at<uint8_t>(0);
  process->arena().free(static_cast<uint64_t>(offset));
}
