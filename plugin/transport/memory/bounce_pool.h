// The bounce pages of one GPU. They are one memory region, which is registered on every rail that a receiving
// connection uses. The region is divided into pages, which are posted to shared receive queues, usually one
// for each rail. All receiving connections of the GPU share the region, because a thread block of NCCL's
// kernel knows only one base address. The pool reserves the addresses of the region at once, and allocates
// its memory in steps when pages are reserved.
//
// Receive entries without pages (bare entries) need almost no memory. They are counted for each receive
// queue. If a queue is full, the rail gets another queue. So only the device limits their number, and later
// connections get as many as earlier ones.
//
// On a device without shared receive queues, or with short ones, each queue pair has its own receive queue.
// In this case pages belong to one queue pair while its connection lives. The connection posts them, and they
// are free again when it is gone.
//
// A page is in one of these states: without memory; free (in no queue); posted (in a receive queue); held (it
// has a chunk of an open message). A held page is posted again in the same queue. Only the connection whose
// completion named a held page accesses it. If a device took a page from a shared queue for a connection that
// closed, the page belongs to no connection until its completion arrives.
//
// With softverbs, consecutive pages are faster, because it copies contiguous data in one operation. There,
// each rail of a connection gets a run: consecutive pages in a receive queue of their own, which are consumed
// and posted again in order. No other connection uses the queue, so when the connection is gone, the whole
// run is free again, together with its queue.
//
// reserve(), release() and acquire() lock. Page access and repost() do not lock in this class; the verbs
// provider locks the queue.
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

// The cookie of a receive contains its page, because a failed completion has no other information about the
// page. No cookie of a send has this bit.
inline constexpr uint64_t kPageBit = uint64_t{1} << 63;
inline bool is_page_cookie(uint64_t cookie) {
  return (cookie & kPageBit) != 0;
}
inline uint32_t cookie_page(uint64_t cookie) {
  return static_cast<uint32_t>(cookie);
}

// The pages that are in no queue, as runs of consecutive pages. The lowest pages are taken first, because
// memory is allocated from the beginning of the region.
class FreePages {
 public:
  struct Run {
    uint32_t first = 0, count = 0;
  };
  void add(Run run);
  // Takes at most `count` consecutive pages; fewer if there is no longer run.
  Run take(uint32_t count);
  // Takes exactly `count` consecutive pages, or none.
  Run take_together(uint32_t count);
  uint32_t count() const { return count_; }
  uint32_t longest() const;

 private:
  Run take_from(std::map<uint32_t, uint32_t>::iterator run, uint32_t count);

  std::map<uint32_t, uint32_t> runs_;  // first page and count; adjacent runs are merged
  uint32_t count_ = 0;
};

class BouncePool {
 public:
  struct Keys {
    uint32_t local = 0, remote = 0;
  };

  // A shared receive queue of a rail, or a placeholder for the queue pairs' own receive queues. A connection
  // uses one on each of its rails.
  class Queue {
   public:
    explicit Queue(const verbs::EqualReceives& bare_entries) : bare_entries_(bare_entries) {}

    bool is_shared() const { return queue_.get() != nullptr; }
    // Returns null if each queue pair has its own receive queue.
    verbs::SharedReceiveQueue* shared() { return is_shared() ? &queue_ : nullptr; }
    uint32_t local_key(uint32_t page) const { return keys_[page / step_pages_].local; }
    uint32_t remote_key(uint32_t page) const { return keys_[page / step_pages_].remote; }

   private:
    friend class BouncePool;
    verbs::SharedReceiveQueue queue_;
    verbs::ReceiveBuffer bare_{nullptr, 0, 0, kPageBit};  // the buffer of a bare entry
    verbs::EqualReceives bare_entries_;
    const Keys* keys_ = nullptr;  // the keys of its rail
    uint32_t step_pages_ = 1;
    uint32_t capacity_entries_ = 0;
    // Posted and held entries; equals the reserved entries if the queue is not shared.
    uint32_t posted_entries_ = 0;
    uint32_t reserved_entries_ = 0;  // entries reserved to connections
    uint32_t retiring_links_ = 0;    // of a run: closed connections whose queue pairs still use the queue
    uint32_t first_page_ = 0;        // of a run
    bool is_run_ = false;
  };

  // The pool's objects on one device.
  struct Rail {
    std::vector<verbs::MemoryRegion> regions;  // one for each step
    // One for each step, allocated in advance. Another thread may add a step. A page of that step is first
    // seen in a completion, which comes later.
    std::vector<Keys> keys;
    std::vector<std::unique_ptr<Queue>> queues;  // shared receive queues
    std::vector<std::unique_ptr<Queue>> runs;    // each is used by one connection
    std::unique_ptr<Queue> own;                  // placeholder for the queue pairs' own queues
    bool lacks_shared_queues = false;            // the device advertises shared queues but cannot create one
    // The buffer for bare entries, bare_memory_, on devices that need one.
    verbs::MemoryRegion bare_region;
    verbs::ReceiveBuffer bare{nullptr, 0, 0, kPageBit};
    verbs::EqualReceives bare_entries{bare};
  };

  // A request for receive entries, for each queue pair.
  struct WindowRequest {
    uint32_t wanted = 0;  // bare entries; or pages, while the pool has many
    uint32_t modest = 0;  // pages, once the pool has few
    uint32_t least = 0;
    bool wants_run = false;  // consecutive pages, in a queue that no other connection uses
    // If not 0, each queue pair has its own receive queue with at most this number of entries, also on a
    // device with shared receive queues.
    uint32_t max_own = 0;
  };
  struct Reservation {
    Queue* queue = nullptr;  // lives as long as the pool
    uint32_t entries = 0;    // for each queue pair; 0 if the pool has fewer than `least`
    // If the queue is not shared: the pages of all queue pairs, `entries` pages for each queue pair in turn.
    // For bare entries, every page is 0.
    std::vector<uint32_t> pages;
  };

  // Length of a queue of bare entries; some devices support less.
  static constexpr uint32_t kBareQueueEntries = 32768;

  enum class Kind : uint8_t {
    kHostPages,
    kGpuPages,     // host pages if no GPU is current
    kBareEntries,  // receive entries without pages, for connections without staging
  };
  // Returns the pool of the current GPU, or of the host if no GPU is current. The pool is shared and
  // destroyed with the last connection. A GPU has one pool of pages, whose kind of memory and page length the
  // first connection determines, and one pool of bare entries. If `page_bytes` is 0, uses VERBENA_PAGE_BYTES.
  static base::Result<std::shared_ptr<BouncePool>> acquire(Kind kind, uint32_t page_bytes = 0);

  // Reserves receive entries for a number of queue pairs of this device, all in one queue. If the queue is
  // shared, also makes sure that the entries are posted. If the number of queue pairs is 0, only returns the
  // device's keys. Creates a run if one was requested and enough consecutive pages are free; otherwise uses a
  // shared queue.
  base::Result<Reservation> reserve(verbs::Device& device, const WindowRequest& request,
                                    uint32_t queue_pairs = 1);
  // Releases a reservation. `entries` is the total of all queue pairs. If there was a link, call retire()
  // first.
  void release(Queue& queue, uint32_t entries);
  // Frees pages of a reservation that are in no receive queue any more.
  void free(std::span<const uint32_t> pages);

  // Posts pages again in the shared queue in which they were posted before.
  base::Outcome repost(Queue& queue, std::span<const uint32_t> pages);
  // Posts pages that belong to this queue pair, in its own receive queue.
  base::Outcome post_own(const Queue& queue, verbs::QueuePair& pair, std::span<const uint32_t> pages);
  protocol::PageInfo& info(uint32_t page) { return infos_[page]; }
  uint32_t pages() const { return pages_; }            // maximum; 0 for bare entries
  uint64_t usable_bytes();                             // the part of the region that has memory
  uint32_t page_bytes() const { return page_bytes_; }  // 0 for bare entries
  uint32_t offset_of(uint32_t page) const { return page * page_bytes_; }
  // Returns the CPU address of a page, or null if the region is in GPU memory.
  const uint8_t* host_page(uint32_t page) const {
    return host_region_.host() == nullptr
               ? nullptr
               : static_cast<const uint8_t*>(host_region_.host()) + offset_of(page);
  }
  // Returns the page's address for the NIC and the GPU.
  void* address_of(uint32_t page) const;
  void* device_base() const { return is_gpu_memory() ? gpu_region_.device() : host_region_.device(); }
  bool is_gpu_memory() const { return gpu_region_.is_gpu_memory(); }
  int gpu() const { return gpu_; }

  // Takes the queue pairs of a closed connection, after link.stop(). The device may still complete receives,
  // and their pages are returned only then. The queue pairs are kept until the device has no outstanding
  // receives or, if the device does not report this, for a second. `queues` are the queues of the link's
  // rails. `own_pages` are the pages of its queue pairs, which become free when the queue pairs are
  // destroyed.
  void retire(Link link, std::vector<Queue*> queues, std::vector<uint32_t> own_pages);
  // Posts the pages again that retired connections have returned. Never waits.
  void reap() { reap(SIZE_MAX); }

  // Describes the pool: pages in use, posted entries, reserved entries.
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
  // Entries that can still be reserved.
  uint32_t count_left(const Queue& queue) const {
    return count_spare(queue) + count_growth(queue.capacity_entries_ - queue.posted_entries_);
  }
  verbs::ReceiveBuffer make_receive(const Queue& queue, uint32_t page) const;
  void reap(size_t most_looks);

  int gpu_ = base::kNoGpu;
  uint32_t page_bytes_ = 0, pages_ = 0, step_pages_ = 1;
  base::GrowingBuffer host_region_;        // either this or the next one is used; neither for bare entries
  base::Buffer gpu_region_;                // never grows
  std::vector<protocol::PageInfo> infos_;  // empty for bare entries, which carry no data and are all page 0
  std::mutex mutex_;                       // guards the members up to the next mutex
  FreePages free_pages_;
  uint32_t usable_steps_ = 0;
  // Receives no data, because a message with bare entries is written to its destination.
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
  // The connection to check next is at the front. Declared after rails_, so that queue pairs are destroyed
  // before their receive queues.
  std::list<Retired> retired_;
};

}  // namespace verbena::transport
