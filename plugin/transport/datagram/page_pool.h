// The pages in which packets land, in host memory, and for each a line for the headers in front of its data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/growing_buffer.h"
#include "base/status.h"
#include "protocol/datagram/slab.h"
#include "transport/memory/unpack_memory.h"

namespace verbena::transport::datagram {

// One range of addresses for the pages of all engines of this process, where kernels unpack: a kernel's
// thread block knows a single bounce base, whatever devices it receives over. Thread safe.
class PageSpace {
 public:
  static base::Result<std::shared_ptr<PageSpace>> acquire();

  struct Slice {
    size_t offset_bytes = 0, length_bytes = 0;
  };
  // None: not so much is left, or the calling thread has no GPU whose kernels could reach it.
  base::Result<std::optional<Slice>> take(size_t length_bytes);
  void give_back(Slice slice);
  std::byte* host() const { return static_cast<std::byte*>(range_.host()); }
  void* bounce_base() const { return range_.device(); }
  // Of the calling thread's GPU.
  UnpackMemories& unpack_memories();

 private:
  PageSpace() = default;

  base::GrowingBuffer range_;
  bool is_pinned_ = false;  // for GPUs; else there was none
  std::mutex mutex_;        // guards all below
  size_t used_bytes_ = 0;   // behind it nothing was ever taken
  std::vector<Slice> free_;
  std::map<int, UnpackMemories> memories_;
};

// One thread at a time.
class PagePool {
 public:
  static constexpr uint32_t kPageBytes = 4096, kLineBytes = 64;

  // The page's own place in a list, and what arrived in it.
  struct Page {
    uint32_t next = protocol::datagram::kNoObject;
    uint32_t index = 0;  // of the packet in its message
    uint32_t length_bytes = 0;
  };

  // In `space`, if there is one and it has room: then kernels reach the pages.
  static base::Result<PagePool> create(uint32_t pages, std::shared_ptr<PageSpace> space);
  PagePool() = default;
  PagePool(PagePool&&) = default;
  PagePool& operator=(PagePool&&) = default;

  uint32_t count() const { return static_cast<uint32_t>(pages_.size()); }
  std::byte* memory() const { return memory_.get(); }
  size_t length_bytes() const { return size_t{count()} * (kPageBytes + kLineBytes); }
  std::byte* data(uint32_t page) const { return memory_.get() + size_t{page} * kPageBytes; }
  std::byte* line(uint32_t page) const {
    return memory_.get() + size_t{count()} * kPageBytes + size_t{page} * kLineBytes;
  }
  Page& operator[](uint32_t page) { return pages_[page]; }

  // Null: nothing is unpacked here.
  const std::shared_ptr<PageSpace>& space() const { return space_; }
  bool is_reached_by_kernels() const { return memory_.get_deleter().slice.has_value(); }
  // Of the page's data, behind the space's bounce base.
  uint32_t offset_of(uint32_t page) const {
    return static_cast<uint32_t>(memory_.get_deleter().slice->offset_bytes + size_t{page} * kPageBytes);
  }

  // Pages that are nobody's. There is one.
  uint32_t take() {
    const uint32_t page = free_.back();
    free_.pop_back();
    return page;
  }
  void put_back(uint32_t page) { free_.push_back(page); }

 private:
  struct Free {
    std::shared_ptr<PageSpace> space;
    std::optional<PageSpace::Slice> slice;
    void operator()(std::byte* memory) const { slice ? space->give_back(*slice) : std::free(memory); }
  };
  std::shared_ptr<PageSpace> space_;
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<Page> pages_;
  std::vector<uint32_t> free_;  // has room for all
};

}  // namespace verbena::transport::datagram
