// Memory of the caller, registered on every rail of a connection's device. NCCL holds it as an mhandle. A
// registration belongs to one connection. All registrations of the same memory share the memory regions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "transport/link/nic.h"
#include "verbs/region_cache.h"

namespace verbena::transport {

struct Registration {
  void* address = nullptr;
  size_t length_bytes = 0;
  bool is_gpu_memory = false;
  uint32_t ordinal = 0;  // number among the registrations of its connection, from 0
  std::array<verbs::RegionLease, verbs::kMaxRails> regions;  // one for each rail
  std::array<uint32_t, verbs::kMaxRails> remote_keys{};      // remote keys, as in grants

  bool covers(const void* data, size_t length) const {
    // Wraps to a number above every length if the data begins before the memory.
    const uintptr_t offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(address);
    return length <= length_bytes && offset <= length_bytes - length;
  }
};

// If fd is -1, registers by address; otherwise by a dma-buf, in which the memory begins at offset_bytes.
// Registers on all rails or on none. A rail whose device has failed gets no key, because no queue pair works
// there.
base::Result<std::unique_ptr<Registration>> register_on_rails(const Nic& nic, void* address,
                                                              size_t length_bytes, bool is_gpu_memory, int fd,
                                                              uint64_t offset_bytes);

}  // namespace verbena::transport
