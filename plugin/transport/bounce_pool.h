// The landing pages of one GPU: one region, registered on every rail that a receiving connection uses, cut
// into pages that sit in one shared receive queue a rail. All receive connections of the GPU share it,
// because a kernel's thread block knows a single bounce base.
//
// A page is, in turn: free (in no queue), posted (in a rail's receive queue), held (it carries a chunk of an
// open message), posted again on the same rail. Only the connection whose completion named a held page
// touches it. A page that a device took for a connection that then closed is nobody's until its completion.
//
// reserve/release and acquire lock; page access and repost are lock-free for us (the provider serialises a
// queue).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/status.h"
#include "transport/link.h"
#include "verbena/unpack_abi.h"
#include "verbs/queues.h"

namespace verbena::transport {

inline constexpr uint32_t kNoPage = UINT32_MAX;

// The cookie of a receive names its page, also in a failed completion, which says nothing else. No cookie of
// a send has this bit.
inline constexpr uint64_t kPageBit = uint64_t{1} << 63;
inline bool is_page_cookie(uint64_t cookie) {
  return (cookie & kPageBit) != 0;
}
inline uint32_t cookie_page(uint64_t cookie) {
  return static_cast<uint32_t>(cookie);
}

// What a held page carries; owned by the holding connection.
struct PageInfo {
  uint32_t next = kNoPage;  // next page of the same message
  uint32_t length_bytes = 0;
  uint16_t chunk = 0;
  uint8_t queue_pair = 0;
};

class BouncePool {
 public:
  class Rail {
   public:
    verbs::SharedReceiveQueue& queue() { return queue_; }
    uint32_t local_key() const { return region_.local_key(); }
    uint32_t remote_key() const { return region_.remote_key(); }

   private:
    friend class BouncePool;
    verbs::MemoryRegion region_;
    verbs::SharedReceiveQueue queue_;
    uint32_t posted_entries_ = 0;  // pages that circulate on this rail
    uint32_t promised_entries_ =
        0;  // of them promised to connections; never more than posted, unless overcommitted
    uint32_t capacity_entries_ = 0;
  };

  enum class Kind : uint8_t {
    kHostPages,
    kGpuPages,     // host pages if no GPU is current
    kBareEntries,  // receive entries without memory, for connections whose messages are all direct
  };
  // The pool of the GPU that is current (or of the host when none is). Shared; goes when the last connection
  // goes. A GPU has one pool of pages, in the place its first connection asked for, and one of bare entries.
  static base::Result<std::shared_ptr<BouncePool>> acquire(Kind kind);

  // The rail of this device, made at first use. The pointer lives as long as the pool.
  base::Result<Rail*> open_rail(verbs::Device& device);
  // Promises up to `wanted` receive entries on the rail and makes sure that they are posted; how many (at
  // least `least`; those may be overcommitted when the region is full: then a sender can meet an empty queue
  // and is retried).
  base::Result<uint32_t> reserve(Rail& rail, uint32_t wanted, uint32_t least);
  void release(Rail& rail, uint32_t entries);

  // Posts pages again on the rail they were posted on before.
  base::Outcome repost(Rail& rail, std::span<const uint32_t> pages);
  PageInfo& info(uint32_t page) { return infos_[page]; }
  uint32_t pages() const { return static_cast<uint32_t>(infos_.size()); }
  uint32_t page_bytes() const { return page_bytes_; }  // 0 for bare entries
  uint32_t offset_of(uint32_t page) const { return page * page_bytes_; }
  // CPU address of a page; null if the region is in GPU memory.
  const uint8_t* host_page(uint32_t page) const {
    return region_.host() == nullptr ? nullptr
                                     : static_cast<const uint8_t*>(region_.host()) + offset_of(page);
  }
  // What the NIC and the GPU call the page.
  void* address_of(uint32_t page) const;
  void* device_base() const { return region_.device(); }
  bool is_gpu_memory() const { return region_.is_gpu_memory(); }
  int gpu() const { return gpu_; }

  // For a connection that closed, after link.stop(): its device may still complete receives, and their pages
  // come back only then. Keeps the queue pairs until the device says that there are none, or for a second
  // where it says nothing. `rails`: of the link's rails.
  void retire(Link link, std::vector<Rail*> rails);
  // Posts again what retired connections gave back since. Never waits.
  void reap();

  // One unpack queue's memory with its device handle filled in. Kept and reused: allocating may wait for the
  // GPU.
  struct UnpackMemory {
    base::Buffer meta;  // one NetUnpackMeta, host
    base::Buffer
        handle;  // one UnpackDeviceHandle, GPU memory; slices of 64 bytes would save little beside the meta
    NetUnpackMeta* host_meta() const { return static_cast<NetUnpackMeta*>(meta.host()); }
  };
  base::Result<std::unique_ptr<UnpackMemory>> take_unpack_memory();
  void return_unpack_memory(std::unique_ptr<UnpackMemory> memory);

 private:
  BouncePool() = default;
  verbs::ReceiveBuffer make_receive(const Rail& rail, uint32_t page) const;

  int gpu_ = base::kNoGpu;
  uint32_t page_bytes_ = 0;
  base::Buffer region_;  // empty for bare entries
  std::vector<PageInfo> infos_;
  std::mutex mutex_;  // guards everything up to the next mutex
  uint32_t next_free_page_ = 0;
  std::map<verbs::Device*, std::unique_ptr<Rail>> rails_;
  std::vector<std::unique_ptr<UnpackMemory>> spare_unpack_memory_;

  struct Retired {
    Link link;
    std::vector<Rail*> rails;
    base::Deadline deadline;
  };
  std::mutex retired_mutex_;      // guards retired_
  std::vector<Retired> retired_;  // after rails_: queue pairs go before their receive queues
};

}  // namespace verbena::transport
