// Caller memory made known to every rail of a connection's device: what NCCL holds as an mhandle. It belongs
// to one connection; the memory regions behind it are shared by all who registered the same memory.
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
  uint32_t ordinal = 0;  // the how-many-th registration of its connection, from 0
  std::array<verbs::RegionLease, verbs::kMaxRails> regions;  // one a rail
  std::array<uint32_t, verbs::kMaxRails> remote_keys{};      // theirs, as grants carry them

  bool covers(const void* data, size_t length) const {
    const auto start = reinterpret_cast<uintptr_t>(data), base = reinterpret_cast<uintptr_t>(address);
    return start >= base && length <= length_bytes && start - base <= length_bytes - length;
  }
};

// fd -1: by address; otherwise through a dma-buf whose start is offset_bytes. All rails or none.
// A rail whose device has failed has no key: no queue pair there works.
base::Result<std::unique_ptr<Registration>> register_on_rails(const Nic& nic, void* address,
                                                              size_t length_bytes, bool is_gpu_memory, int fd,
                                                              uint64_t offset_bytes);

}  // namespace verbena::transport
