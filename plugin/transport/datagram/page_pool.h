// The pages into which packets are received. For each page there is a line of host memory for the headers in
// front of the data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/cuda_driver.h"
#include "base/growing_buffer.h"
#include "base/status.h"
#include "protocol/datagram/packet.h"
#include "protocol/datagram/page_budget.h"
#include "protocol/datagram/slab.h"
#include "transport/memory/unpack_memory.h"
#include "verbs/near_memory.h"

namespace verbena::transport::datagram {

// One range of addresses for the pages of all engines of this process, if kernels unpack. One range is
// necessary, because a thread block of NCCL's kernel knows only one base address, whatever devices it
// receives over. Thread safe.
class PageSpace {
 public:
  // `in_gpu` requests memory of the calling thread's GPU. The first caller decides.
  static base::Result<std::shared_ptr<PageSpace>> acquire(bool in_gpu);

  struct Slice {
    size_t offset_bytes = 0, length_bytes = 0;
  };
  // Returns no slice if not enough memory is left, or if the calling thread has no GPU whose kernels could
  // access it.
  base::Result<std::optional<Slice>> take(size_t length_bytes);
  void give_back(Slice slice);
  // The address for the NIC. The CPU cannot access it if it is GPU memory.
  std::byte* memory() const {
    return static_cast<std::byte*>(is_gpu_memory() ? gpu_range_.device() : range_.host());
  }
  bool is_gpu_memory() const { return gpu_range_.is_gpu_memory(); }
  // Returns whether kernels of the calling thread's GPU can access the range.
  bool is_reached_from_here() const;
  void* bounce_base() const { return is_gpu_memory() ? gpu_range_.device() : range_.device(); }
  // For the calling thread's GPU.
  UnpackMemories& unpack_memories();

 private:
  PageSpace() = default;
  size_t max_bytes() const { return is_gpu_memory() ? gpu_range_.length_bytes() : range_.max_bytes(); }

  base::GrowingBuffer range_;  // either this or the next one is used
  base::Buffer gpu_range_;
  int gpu_ = base::kNoGpu;  // the GPU of gpu_range_
  bool is_pinned_ = false;  // pinned for GPUs; false if there was no GPU
  std::mutex mutex_;        // guards the members below
  size_t used_bytes_ = 0;   // memory after this offset was never used
  std::vector<Slice> free_;
  std::map<int, UnpackMemories> memories_;
};

// One thread at a time uses it.
class PagePool {
 public:
  static constexpr uint32_t kLeastPageBytes = 4096, kMostPageBytes = 131072, kLineBytes = 64;

  // The queue to which the page was posted, until a packet has arrived in it.
  struct Page {
    bool is_posted = false;
    uint8_t posts = 0;  // number of times it was posted, wrapping
    uint8_t rail = 0;
    protocol::datagram::PageQueue queue = protocol::datagram::PageQueue::kGranted;
  };

  // Allocates the pages in `space` if that is not null and has enough memory; kernels can then access the
  // pages. After these pages come the small-message buffers, in host memory. `device` is one of the devices
  // that receive into the pages.
  static base::Result<PagePool> create(const verbs::Device& device, uint32_t pages, uint32_t page_bytes,
                                       std::shared_ptr<PageSpace> space, uint32_t short_pages);
  PagePool() = default;
  PagePool(PagePool&&) = default;
  PagePool& operator=(PagePool&&) = default;

  uint32_t count() const { return static_cast<uint32_t>(pages_.size()); }  // pages and small-message buffers
  uint32_t long_count() const { return long_count_; }
  uint32_t short_count() const { return count() - long_count_; }
  bool is_short(uint32_t page) const { return page >= long_count_; }
  uint32_t page_bytes() const { return page_bytes_; }  // of pages, not of small-message buffers
  bool has_long_pages() const { return page_bytes_ != kLeastPageBytes; }
  std::span<std::byte> pages() const { return {memory_.get(), size_t{long_count_} * page_bytes_}; }
  std::span<std::byte> short_pages() const {
    return {short_memory_.get(), size_t{short_count()} * protocol::datagram::kShortBytes};
  }
  std::span<std::byte> lines() const { return {lines_.get(), size_t{count()} * kLineBytes}; }
  std::byte* data(uint32_t page) const {
    return is_short(page) ? short_memory_.get() + size_t{page - long_count_} * protocol::datagram::kShortBytes
                          : memory_.get() + size_t{page} * page_bytes_;
  }
  std::byte* line(uint32_t page) const { return lines_.get() + size_t{page} * kLineBytes; }
  // If true, the CPU cannot read the page.
  bool is_gpu_memory(uint32_t page) const {
    return !is_short(page) && is_reached_by_kernels() && space_->is_gpu_memory();
  }
  Page& operator[](uint32_t page) { return pages_[page]; }
  const Page& operator[](uint32_t page) const { return pages_[page]; }

  // Returns null if no receives are unpacked.
  const std::shared_ptr<PageSpace>& space() const { return space_; }
  bool is_reached_by_kernels() const { return memory_.get_deleter().slice.has_value(); }
  // Returns the offset of the data of a page from the base address of the space. Not for small-message
  // buffers.
  uint32_t offset_of(uint32_t page) const {
    return static_cast<uint32_t>(memory_.get_deleter().slice->offset_bytes + size_t{page} * page_bytes_);
  }

  // Takes a free page; there must be one. The pages of one queue of a rail are consecutive in memory where
  // possible. The pages of a message are then consecutive too, and one call copies many of them.
  uint32_t take(uint32_t rail, protocol::datagram::PageQueue queue) {
    const bool is_short = queue == protocol::datagram::PageQueue::kShort;
    const uint32_t page = is_short ? take_short() : take_long(runs_[static_cast<size_t>(queue)][rail]);
    pages_[page].is_posted = true;
    ++pages_[page].posts;
    pages_[page].rail = static_cast<uint8_t>(rail);
    pages_[page].queue = queue;
    return page;
  }
  void put_back(uint32_t page) {
    pages_[page].is_posted = false;
    is_short(page) ? free_short_.push_back(page) : set_free(page);
  }

 private:
  // 64 consecutive pages, which one queue of a rail takes one after the other.
  struct Run {
    uint32_t word = 0, next = kRunPages;
  };
  static constexpr uint32_t kRunPages = 64;

  uint32_t take_long(Run& run);
  uint32_t take_short() {
    const uint32_t page = free_short_.back();
    free_short_.pop_back();
    return page;
  }
  void set_free(uint32_t page) { free_[page / kRunPages] |= uint64_t{1} << page % kRunPages; }

  struct Free {
    std::shared_ptr<PageSpace> space;
    std::optional<PageSpace::Slice> slice;
    void operator()(std::byte* memory) const { slice ? space->give_back(*slice) : std::free(memory); }
  };
  uint32_t page_bytes_ = kLeastPageBytes;
  std::shared_ptr<PageSpace> space_;
  std::unique_ptr<std::byte, Free> memory_;
  verbs::NearMemory short_memory_, lines_;
  uint32_t long_count_ = 0;
  std::vector<Page> pages_;
  std::vector<uint64_t> free_;        // a bit for each page
  std::vector<uint32_t> free_short_;  // of small-message buffers; has capacity for all
  std::array<std::array<Run, protocol::datagram::kMaxEngineRails>, 2> runs_{};
};

}  // namespace verbena::transport::datagram
