// The landing pages of one GPU: one region, registered on every rail that a receiving connection uses, cut
// into pages that sit in one shared receive queue a rail. All receive connections of the GPU share it,
// because a kernel's thread block knows a single bounce base. The region's addresses are taken at once; its
// memory comes in steps, when pages are promised.
//
// A page is, in turn: without memory, free (in no queue), posted (in a rail's receive queue), held (it
// carries a chunk of an open message), posted again on the same rail. Only the connection whose completion
// named a held page touches it. A page that a device took for a connection that then closed is nobody's until
// its completion.
//
// reserve/release and acquire lock; page access and repost are lock-free for us (the provider serialises a
// queue).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/growing_buffer.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/unpack_memory.h"
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
    uint32_t local_key(uint32_t page) const { return keys_[page / step_pages_].local; }
    uint32_t remote_key(uint32_t page) const { return keys_[page / step_pages_].remote; }

   private:
    friend class BouncePool;
    struct Keys {
      uint32_t local = 0, remote = 0;
    };
    std::vector<verbs::MemoryRegion> regions_;  // one a step
    verbs::SharedReceiveQueue queue_;
    // One a step. A page whose step was added by another thread is known from a completion, which came after.
    std::vector<Keys> keys_;
    uint32_t step_pages_ = 1;
    uint32_t posted_entries_ = 0;    // pages that circulate on this rail
    uint32_t promised_entries_ = 0;  // of them promised to connections
    uint32_t capacity_entries_ = 0;
  };

  struct Wish {
    uint32_t wanted = 0;  // entries; so many while the pool is generous
    uint32_t modest = 0;  // so many afterwards: most of the pool is kept for those that are content with them
    uint32_t least = 0;
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
  // Promises receive entries on the rail and makes sure that they are posted; how many. 0 if the pool has
  // less left than `least`: nothing is promised twice.
  base::Result<uint32_t> reserve(Rail& rail, const Wish& wish);
  void release(Rail& rail, uint32_t entries);

  // Posts pages again on the rail they were posted on before.
  base::Outcome repost(Rail& rail, std::span<const uint32_t> pages);
  PageInfo& info(uint32_t page) { return infos_[page]; }
  uint32_t pages() const { return pages_; }            // at most
  uint64_t usable_bytes();                             // of the region: with memory
  uint32_t page_bytes() const { return page_bytes_; }  // 0 for bare entries
  uint32_t offset_of(uint32_t page) const { return page * page_bytes_; }
  // CPU address of a page; null if the region is in GPU memory.
  const uint8_t* host_page(uint32_t page) const {
    return host_region_.host() == nullptr
               ? nullptr
               : static_cast<const uint8_t*>(host_region_.host()) + offset_of(page);
  }
  // What the NIC and the GPU call the page.
  void* address_of(uint32_t page) const;
  void* device_base() const { return is_gpu_memory() ? gpu_region_.device() : host_region_.device(); }
  bool is_gpu_memory() const { return gpu_region_.is_gpu_memory(); }
  int gpu() const { return gpu_; }

  // For a connection that closed, after link.stop(): its device may still complete receives, and their pages
  // come back only then. Keeps the queue pairs until the device says that there are none, or for a second
  // where it says nothing. `rails`: of the link's rails.
  void retire(Link link, std::vector<Rail*> rails);
  // Posts again what retired connections gave back since. Never waits.
  void reap();

  // `pages of GPU 0: ...`: what is there, posted, promised.
  std::string describe();

  UnpackMemories& unpack_memories() { return unpack_memories_; }

 private:
  BouncePool() = default;
  base::Outcome set_up_pages(Kind kind);
  base::Outcome make_usable(uint32_t pages);
  base::Outcome register_steps(verbs::Device& device, Rail& rail);
  uint32_t choose_grant(const Rail& rail, const Wish& wish) const;
  uint32_t count_spare(const Rail& rail) const { return rail.posted_entries_ - rail.promised_entries_; }
  verbs::ReceiveBuffer make_receive(const Rail& rail, uint32_t page) const;

  int gpu_ = base::kNoGpu;
  uint32_t page_bytes_ = 0, pages_ = 0, step_pages_ = 1;
  base::GrowingBuffer host_region_;  // this or the next one; neither for bare entries
  base::Buffer gpu_region_;          // one step
  std::vector<PageInfo> infos_;      // none for bare entries, which carry nothing
  std::mutex mutex_;                 // guards everything up to the next mutex
  uint32_t next_free_page_ = 0;
  uint32_t usable_steps_ = 0;
  std::map<verbs::Device*, std::unique_ptr<Rail>> rails_;
  UnpackMemories unpack_memories_;

  struct Retired {
    Link link;
    std::vector<Rail*> rails;
    base::Deadline deadline;
  };
  std::mutex retired_mutex_;      // guards retired_
  std::vector<Retired> retired_;  // after rails_: queue pairs go before their receive queues
};

}  // namespace verbena::transport
