// Whether every page of the bounce pool still sits in its receive queue, found out by filling them all.
#pragma once

#include "transport/support/transfer.h"

namespace verbena::transport {

// Keeps the pool alive between the connections of a test, with pages of 4 KiB and one rail.
class PoolProbe {
 public:
  static constexpr uint32_t kPages = 256;
  // What the test's connections must be made with; they may ask for up to 200 pages.
  static Settings make_settings(uint32_t window_pages);

  explicit PoolProbe(const Nic& nic);
  // Sends one page for each page there is before anybody takes one out: a page that was lost leaves a send
  // undone, a page that was posted twice is overwritten. No other connection may be open.
  void expect_whole();

 private:
  const Nic& nic_;
  ConnectedPair anchor_;
};

}  // namespace verbena::transport
