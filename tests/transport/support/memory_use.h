// How much memory this process has, as the kernel counts it.
#pragma once

#include <cstdint>

namespace verbena::transport {

struct MemoryUse {
  uint64_t process_bytes = 0;  // everything resident, a page shared with others by its share
  // The segment that softverbs made for this process, mapped or not: what a NIC would have on its card and in
  // its driver. What is mapped of other processes' segments counts there.
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;  // of process_bytes

  uint64_t total_bytes() const { return process_bytes + device_bytes; }
};

MemoryUse measure_memory();

}  // namespace verbena::transport
