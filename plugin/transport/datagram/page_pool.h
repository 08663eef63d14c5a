// The pages in which packets land, in host memory, and for each a line for the headers in front of its data.
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/status.h"
#include "protocol/datagram/slab.h"

namespace verbena::transport::datagram {

class PagePool {
 public:
  static constexpr uint32_t kPageBytes = 4096, kLineBytes = 64;

  // The page's own place in a list, and what arrived in it.
  struct Page {
    uint32_t next = protocol::datagram::kNoObject;
    uint32_t index = 0;  // of the packet in its message
    uint32_t length_bytes = 0;
  };

  static base::Result<PagePool> create(uint32_t pages);
  PagePool() = default;

  uint32_t count() const { return static_cast<uint32_t>(pages_.size()); }
  std::byte* memory() const { return memory_.get(); }
  size_t length_bytes() const { return size_t{count()} * (kPageBytes + kLineBytes); }
  std::byte* data(uint32_t page) const { return memory_.get() + size_t{page} * kPageBytes; }
  std::byte* line(uint32_t page) const {
    return memory_.get() + size_t{count()} * kPageBytes + size_t{page} * kLineBytes;
  }
  Page& operator[](uint32_t page) { return pages_[page]; }

  // Pages that are nobody's. There is one.
  uint32_t take() {
    const uint32_t page = free_.back();
    free_.pop_back();
    return page;
  }
  void put_back(uint32_t page) { free_.push_back(page); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<Page> pages_;
  std::vector<uint32_t> free_;  // has room for all
};

}  // namespace verbena::transport::datagram
