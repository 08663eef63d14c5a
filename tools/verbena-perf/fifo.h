#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/nccl_host.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// The buffers that NCCL registers right after connecting: LL, LL128 and Simple, in NCCL's order and sizes, or
// larger if a message needs it. With --user-buffer there is a fourth buffer, which is registered later.
// Messages use the buffer of the chosen protocol. Each message in flight has a separate part of it, followed
// by guard bytes if there is space.
class Fifo {
 public:
  // Registers the buffers with `comm`, which must stay open until release(). `lender` is the Fifo of another
  // connection that is idle at the same time, whose memory is shared; null for separate memory.
  Fifo(NetPlugin& plugin, void* comm, const PerfOptions& options, uint64_t offset_bytes, const Fifo* lender);

  void release(NetPlugin& plugin, void* comm);

  // The address of message `index` of this size. Addresses repeat after a window of messages.
  std::span<std::byte> place(uint64_t index, uint64_t length_bytes) const;
  std::span<std::byte> guard(uint64_t index, uint64_t length_bytes) const;
  // The length to post: like NCCL, a whole slice even if less arrives.
  uint64_t receive_length(uint64_t length_bytes) const;

  void* mhandle() const { return active_->mhandle; }

 private:
  struct Region {
    std::shared_ptr<PageMemory> memory;  // one page more than is registered, for the last message's guard
    void* mhandle = nullptr;
  };

  void add_region(NetPlugin& plugin, void* comm, size_t length_bytes, int type, const Fifo* lender);
  uint64_t stride(uint64_t length_bytes) const;

  unsigned window_;
  uint64_t offset_bytes_;
  uint64_t slice_bytes_;
  std::vector<Region> regions_;
  Region* active_ = nullptr;
};

// A sequence of messages of one size over one connection. Both sides count the connection's messages, so they
// agree on the pattern of each. Distinct messages are filled one by one, for the pass that verifies every
// byte; otherwise a window of prepared messages is repeated, so that filling is not timed.
struct Pass {
  uint64_t length_bytes = 0;
  uint64_t count = 0;
  bool distinct = true;
  uint64_t first_sequence = 0;

  uint64_t pattern_index(uint64_t message, unsigned window) const {
    return first_sequence + (distinct ? message : message % window);
  }
};

// Sums over all passes of one size.
struct ReceiveCounts {
  uint64_t staged = 0;  // receives whose slot held descriptors
  uint64_t direct = 0;
  uint64_t descriptors = 0;
  uint64_t verified_bytes = 0;
  uint64_t wrong_bytes = 0;

  ReceiveCounts& operator+=(const ReceiveCounts& more) {
    staged += more.staged;
    direct += more.direct;
    descriptors += more.descriptors;
    verified_bytes += more.verified_bytes;
    wrong_bytes += more.wrong_bytes;
    return *this;
  }
};

}  // namespace verbena::tools::perf
