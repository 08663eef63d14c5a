// The pages in which packets land, and for each a line of host memory for the headers in front of its data.
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

// One range of addresses for the pages of all engines of this process, where kernels unpack: a kernel's
// thread block knows a single bounce base, whatever devices it receives over. Thread safe.
class PageSpace {
 public:
  // `in_gpu`: in memory of the calling thread's GPU, if there is one. The first who asks decides.
  static base::Result<std::shared_ptr<PageSpace>> acquire(bool in_gpu);

  struct Slice {
    size_t offset_bytes = 0, length_bytes = 0;
  };
  // None: not so much is left, or the calling thread has no GPU whose kernels could reach it.
  base::Result<std::optional<Slice>> take(size_t length_bytes);
  void give_back(Slice slice);
  // For the NIC; of memory of a GPU not for the CPU.
  std::byte* memory() const {
    return static_cast<std::byte*>(is_gpu_memory() ? gpu_range_.device() : range_.host());
  }
  bool is_gpu_memory() const { return gpu_range_.is_gpu_memory(); }
  // Whether kernels of the calling thread's GPU do.
  bool is_reached_from_here() const;
  void* bounce_base() const { return is_gpu_memory() ? gpu_range_.device() : range_.device(); }
  // Of the calling thread's GPU.
  UnpackMemories& unpack_memories();

 private:
  PageSpace() = default;
  size_t max_bytes() const { return is_gpu_memory() ? gpu_range_.length_bytes() : range_.max_bytes(); }

  base::GrowingBuffer range_;  // this or the next one
  base::Buffer gpu_range_;
  int gpu_ = base::kNoGpu;  // of gpu_range_
  bool is_pinned_ = false;  // for GPUs; else there was none
  std::mutex mutex_;        // guards all below
  size_t used_bytes_ = 0;   // behind it nothing was ever taken
  std::vector<Slice> free_;
  std::map<int, UnpackMemories> memories_;
};

// One thread at a time.
class PagePool {
 public:
  static constexpr uint32_t kLeastPageBytes = 4096, kMostPageBytes = 131072, kLineBytes = 64;

  // Where it was posted, until a packet has taken it.
  struct Page {
    bool is_posted = false;
    uint8_t posts = 0;  // so far, wrapping
    uint8_t rail = 0;
    protocol::datagram::PageQueue queue = protocol::datagram::PageQueue::kGranted;
  };

  // In `space`, if there is one and it has room: then kernels reach the pages. Behind them in number so many
  // short ones in memory of the host. The device is one of those that receive into them.
  static base::Result<PagePool> create(const verbs::Device& device, uint32_t pages, uint32_t page_bytes,
                                       std::shared_ptr<PageSpace> space, uint32_t short_pages);
  PagePool() = default;
  PagePool(PagePool&&) = default;
  PagePool& operator=(PagePool&&) = default;

  uint32_t count() const { return static_cast<uint32_t>(pages_.size()); }  // of both kinds
  uint32_t long_count() const { return long_count_; }
  uint32_t short_count() const { return count() - long_count_; }
  bool is_short(uint32_t page) const { return page >= long_count_; }
  uint32_t page_bytes() const { return page_bytes_; }  // of those that are not short
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
  // Then the CPU cannot read what is in the page.
  bool is_gpu_memory(uint32_t page) const {
    return !is_short(page) && is_reached_by_kernels() && space_->is_gpu_memory();
  }
  Page& operator[](uint32_t page) { return pages_[page]; }
  const Page& operator[](uint32_t page) const { return pages_[page]; }

  // Null: nothing is unpacked here.
  const std::shared_ptr<PageSpace>& space() const { return space_; }
  bool is_reached_by_kernels() const { return memory_.get_deleter().slice.has_value(); }
  // Of the data of a page that is not short, behind the space's bounce base.
  uint32_t offset_of(uint32_t page) const {
    return static_cast<uint32_t>(memory_.get_deleter().slice->offset_bytes + size_t{page} * page_bytes_);
  }

  // Pages that are nobody's. There is one. Those of a queue of a rail follow each other in memory as far as
  // they can: so do those of a message then, and one call copies many of them.
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
  // The 64 pages of which a queue of a rail takes one after the other.
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
  std::vector<uint64_t> free_;        // a bit for each page that is not short
  std::vector<uint32_t> free_short_;  // has room for all
  std::array<std::array<Run, protocol::datagram::kMaxEngineRails>, 2> runs_{};
};

}  // namespace verbena::transport::datagram
