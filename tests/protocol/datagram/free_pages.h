// The pages that nobody has, by number, as a port of the core gives them to packets. Aborts where a page is
// put back twice or there is none: the core has lost count.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace verbena::protocol::datagram {

class FreePages {
 public:
  explicit FreePages(uint32_t pages) : is_free_(pages, true) {
    for (uint32_t page = pages; page != 0; --page) free_.push_back(page - 1);
  }

  uint32_t take() {
    if (free_.empty()) std::abort();
    const uint32_t page = free_.back();
    free_.pop_back();
    is_free_[page] = false;
    return page;
  }
  void put_back(uint32_t page) {
    if (is_free_[page]) std::abort();
    is_free_[page] = true;
    free_.push_back(page);
  }
  size_t count() const { return free_.size(); }

 private:
  std::vector<uint32_t> free_;
  std::vector<bool> is_free_;
};

}  // namespace verbena::protocol::datagram
