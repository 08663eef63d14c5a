// The landing pages of one GPU: one region, registered on every rail that a receiving connection uses, cut
// into pages that sit in shared receive queues, usually one a rail. All receive connections of the GPU share
// it, because a kernel's thread block knows a single bounce base. The region's addresses are taken at once;
// its memory comes in steps, when pages are reserved.
//
// Entries without memory (bare ones) cost next to nothing and are counted for each receive queue: where one
// is full, as deep as the device makes them, the rail gets another. So their number is bounded by the device
// alone, and nobody gets fewer because others came first.
//
// A device without shared receive queues, or with small ones, has a receive queue for each queue pair. Then
// pages are a queue pair's own while its connection lives, posted by that connection, and free again once it
// is gone.
//
// A page is, in turn: without memory, free (in no queue), posted (in a receive queue), held (it carries a
// chunk of an open message), posted again in the same queue. Only the connection whose completion named a
// held page touches it. A page that a device took from a shared queue for a connection that then closed is
// nobody's until its completion.
//
// Where pages that lie in order pay (softverbs makes one copy of what continues on both sides), a connection
// gets a run: a receive queue of its own with consecutive pages, which are consumed and posted again in their
// order. It shares nothing, so a run is free again as a whole, with its queue, once the connection is gone.
//
// reserve/release and acquire lock; page access and repost are lock-free for us (the provider serialises a
// queue).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
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
#include "protocol/receive_core.h"
#include "transport/link/link.h"
#include "transport/memory/unpack_memory.h"
#include "verbs/queues.h"

namespace verbena::transport {

// The cookie of a receive names its page, also in a failed completion, which says nothing else. No cookie of
// a send has this bit.
inline constexpr uint64_t kPageBit = uint64_t{1} << 63;
inline bool is_page_cookie(uint64_t cookie) {
  return (cookie & kPageBit) != 0;
}
inline uint32_t cookie_page(uint64_t cookie) {
  return static_cast<uint32_t>(cookie);
}

// Pages that are in no queue, as runs of consecutive ones. Takes the lowest first: memory comes from below.
class FreePages {
 public:
  struct Run {
    uint32_t first = 0, count = 0;
  };
  void add(Run run);
  // At most so many; fewer where they do not lie together.
  Run take(uint32_t count);
  // Exactly so many, or none.
  Run take_together(uint32_t count);
  uint32_t count() const { return count_; }
  uint32_t longest() const;

 private:
  Run take_from(std::map<uint32_t, uint32_t>::iterator run, uint32_t count);

  std::map<uint32_t, uint32_t> runs_;  // first page, count; no two adjoin
  uint32_t count_ = 0;
};

class BouncePool {
 public:
  struct Keys {
    uint32_t local = 0, remote = 0;
  };

  // A shared receive queue of a rail, or what stands for the queue pairs' own; a connection has one on each
  // of its rails.
  class Queue {
   public:
    bool is_shared() const { return queue_.get() != nullptr; }
    // Null: each queue pair has its own.
    verbs::SharedReceiveQueue* shared() { return is_shared() ? &queue_ : nullptr; }
    uint32_t local_key(uint32_t page) const { return keys_[page / step_pages_].local; }
    uint32_t remote_key(uint32_t page) const { return keys_[page / step_pages_].remote; }

   private:
    friend class BouncePool;
    verbs::SharedReceiveQueue queue_;
    verbs::ReceiveBuffer bare_{nullptr, 0, 0, kPageBit};  // what a bare entry is posted as
    const Keys* keys_ = nullptr;                          // of its rail
    uint32_t step_pages_ = 1;
    uint32_t capacity_entries_ = 0;
    uint32_t posted_entries_ = 0;    // that circulate in this queue; all are reserved where it is not shared
    uint32_t reserved_entries_ = 0;  // of them reserved to connections
    uint32_t retiring_links_ = 0;    // closed connections whose queue pairs still use it; of a run
    uint32_t first_page_ = 0;        // of a run
    bool is_run_ = false;
  };

  // A device, as the pool uses it.
  struct Rail {
    std::vector<verbs::MemoryRegion> regions;  // one a step
    // One a step; as many from the start. A page whose step was added by another thread is known from a
    // completion, which came after.
    std::vector<Keys> keys;
    std::vector<std::unique_ptr<Queue>> queues;  // shared ones
    std::vector<std::unique_ptr<Queue>> runs;    // of one connection each
    std::unique_ptr<Queue> own;                  // what stands for the queue pairs' own
    bool lacks_shared_queues = false;            // the device advertises them, and makes none
    // Of bare entries, where the device may not take an entry without memory: bare_memory_.
    verbs::MemoryRegion bare_region;
    verbs::ReceiveBuffer bare{nullptr, 0, 0, kPageBit};
  };

  // Of receive entries, for each queue pair.
  struct WindowRequest {
    uint32_t wanted = 0;  // so many of bare entries, and of pages while the pool is generous
    uint32_t modest = 0;  // so many pages afterwards: most are kept for those that are content with them
    uint32_t least = 0;
    bool wants_run = false;  // consecutive pages, in a queue that no other connection uses
    // Not 0: the queue pairs have receive queues of their own, of so many entries at most, also where the
    // device has shared ones.
    uint32_t max_own = 0;
  };
  struct Reservation {
    Queue* queue = nullptr;  // lives as long as the pool
    uint32_t entries = 0;    // for each queue pair; 0: the pool has less left than `least`
    // Where the queue is not shared: the pages of all queue pairs, in turn `entries` of each. Bare ones are
    // all page 0.
    std::vector<uint32_t> pages;
  };

  static constexpr uint32_t kBareQueueEntries = 32768;  // of a queue of bare entries; some devices have less

  enum class Kind : uint8_t {
    kHostPages,
    kGpuPages,     // host pages if no GPU is current
    kBareEntries,  // receive entries without memory, for connections whose messages are all direct
  };
  // The pool of the GPU that is current (or of the host when none is). Shared; goes when the last connection
  // goes. A GPU has one pool of pages, in the place and of the length its first connection asked for, and one
  // of bare entries. `page_bytes`: 0 is VERBENA_PAGE_BYTES.
  static base::Result<std::shared_ptr<BouncePool>> acquire(Kind kind, uint32_t page_bytes = 0);

  // Reserves receive entries to so many queue pairs of this device, all in one queue, and makes sure that
  // they are posted if that is shared: nothing is reserved twice. Of no queue pairs: the device's keys alone.
  // A run is made where there are enough consecutive pages, else the entries are shared ones.
  base::Result<Reservation> reserve(verbs::Device& device, const WindowRequest& request,
                                    uint32_t queue_pairs = 1);
  // `entries`: of all queue pairs. After retire(), if there was a link.
  void release(Queue& queue, uint32_t entries);
  // Of a reservation: in no receive queue any more.
  void free(std::span<const uint32_t> pages);

  // Posts pages again in the shared queue they were posted in before.
  base::Outcome repost(Queue& queue, std::span<const uint32_t> pages);
  // Posts pages that are this queue pair's own, in its own receive queue.
  base::Outcome post_own(const Queue& queue, verbs::QueuePair& pair, std::span<const uint32_t> pages);
  protocol::PageInfo& info(uint32_t page) { return infos_[page]; }
  uint32_t pages() const { return pages_; }            // at most; 0 for bare entries
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
  // where it says nothing. `queues`: of the link's rails. `own_pages`: of its queue pairs, free when they are
  // gone.
  void retire(Link link, std::vector<Queue*> queues, std::vector<uint32_t> own_pages);
  // Posts again what retired connections gave back since. Never waits.
  void reap() { reap(SIZE_MAX); }

  // `pages of GPU 0: ...`: what is there, posted, reserved.
  std::string describe();

  UnpackMemories& unpack_memories() { return unpack_memories_; }

 private:
  BouncePool() = default;
  base::Outcome set_up_pages(Kind kind, uint32_t page_bytes);
  base::Outcome make_usable(uint32_t pages);
  base::Outcome register_steps(verbs::Device& device, Rail& rail);
  bool is_bare() const { return page_bytes_ == 0; }
  base::Result<Rail*> open_rail(verbs::Device& device);
  base::Result<Queue*> choose_queue(verbs::Device& device, Rail& rail, uint32_t enough_entries);
  base::Outcome add_queue(verbs::Device& device, Rail& rail);
  base::Outcome register_bare(verbs::Device& device, Rail& rail);
  std::unique_ptr<Queue> make_queue(const Rail& rail, uint32_t capacity_entries) const;
  template <typename Post>
  base::Outcome post_batches(const Queue& queue, std::span<const uint32_t> pages, Post&& post) const;
  base::Outcome post_more(Queue& queue, uint32_t entries);
  base::Outcome post_pages(Queue& queue, uint32_t first_page, uint32_t entries);
  base::Result<Reservation> reserve_run(verbs::Device& device, Rail& rail, const WindowRequest& request,
                                        uint32_t queue_pairs);
  void free_if_unused(Queue& queue);
  base::Result<Reservation> reserve_own(verbs::Device& device, Rail& rail, const WindowRequest& request,
                                        uint32_t queue_pairs);
  base::Result<std::vector<uint32_t>> take_pages(uint32_t count);
  uint32_t choose_grant(uint32_t left_entries, const WindowRequest& request, uint32_t queue_pairs) const;
  static uint32_t count_spare(const Queue& queue) { return queue.posted_entries_ - queue.reserved_entries_; }
  uint32_t count_growth(uint32_t room_entries) const {
    return is_bare() ? room_entries : std::min(free_pages_.count(), room_entries);
  }
  // That can still be reserved.
  uint32_t count_left(const Queue& queue) const {
    return count_spare(queue) + count_growth(queue.capacity_entries_ - queue.posted_entries_);
  }
  verbs::ReceiveBuffer make_receive(const Queue& queue, uint32_t page) const;
  void reap(size_t most_looks);

  int gpu_ = base::kNoGpu;
  uint32_t page_bytes_ = 0, pages_ = 0, step_pages_ = 1;
  base::GrowingBuffer host_region_;        // this or the next one; neither for bare entries
  base::Buffer gpu_region_;                // one step
  std::vector<protocol::PageInfo> infos_;  // none for bare entries, which carry nothing and are all page 0
  std::mutex mutex_;                       // guards everything up to the next mutex
  FreePages free_pages_;
  uint32_t usable_steps_ = 0;
  // Nothing is received here: messages with bare entries are written to their destination.
  std::array<uint64_t, 8> bare_memory_{};
  std::map<verbs::Device*, std::unique_ptr<Rail>> rails_;
  UnpackMemories unpack_memories_;

  struct Retired {
    Link link;
    std::vector<Queue*> queues;
    std::vector<uint32_t> own_pages;
    base::Deadline deadline;
  };
  bool look_at(Retired& retired);

  std::mutex retired_mutex_;  // guards retired_
  // The next to be looked at in front. After rails_: queue pairs go before their receive queues.
  std::list<Retired> retired_;
};

}  // namespace verbena::transport
