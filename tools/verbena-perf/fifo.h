#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/net_plugin.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// The buffers that NCCL registers right after connecting, in its order (LL, LL128, Simple) and with its
// sizes, larger where a message needs it; with --user-buffer a fourth one, registered later. Messages go
// through the buffer of the chosen protocol, one per window place, each followed by guard bytes where there
// is room.
class Fifo {
 public:
  // Registers with `comm`, which must stay open until release().
  Fifo(NetPlugin& plugin, void* comm, const Options& options, uint64_t offset_bytes);

  void release(NetPlugin& plugin, void* comm);

  // The message `index` of this size; places repeat after a window of messages.
  std::span<std::byte> place(uint64_t index, uint64_t length_bytes) const;
  std::span<std::byte> guard(uint64_t index, uint64_t length_bytes) const;
  // As NCCL, receives are posted for a whole slice even when less will come.
  uint64_t receive_length(uint64_t length_bytes) const;

  void* mhandle() const { return active_->mhandle; }

 private:
  struct Region {
    std::vector<std::byte> storage;
    std::byte* data = nullptr;  // page aligned, within storage
    size_t length_bytes = 0;
    void* mhandle = nullptr;
  };

  void add_region(NetPlugin& plugin, void* comm, size_t length_bytes, int type);
  uint64_t stride(uint64_t length_bytes) const;

  unsigned window_;
  uint64_t offset_bytes_;
  uint64_t slice_bytes_;
  std::vector<Region> regions_;
  Region* active_ = nullptr;
};

}  // namespace verbena::tools::perf
