// The data of a kernel of verbena-bench unpack, and the place of every byte. The host, our kernels and the
// kernel around NCCL's code include it, hence self-contained: C++17, --expt-relaxed-constexpr.
//
// One block is one receive connection with its own unpack queue. Its messages are in `rounds` bounce regions:
// the same descriptors are used with another base for each, so that the data exceeds any cache. The buffers
// have `message_stride_bytes` each, in the order of message_index; every byte of a buffer outside the message
// is a guard byte.
#pragma once
#include <stdint.h>

namespace verbena::tools::unpack {

inline constexpr uint32_t kGuardBeforeBytes = 256;
inline constexpr uint32_t kGuardAfterBytes = 64;  // at least
inline constexpr uint64_t kGuardWord = 0xA5A5A5A5A5A5A5A5ULL;
inline constexpr uint64_t kUnusedWord = 0xEEEEEEEEEEEEEEEEULL;  // fills bounce memory outside of descriptors

struct UnpackRun {
  void* meta = nullptr;  // one NetUnpackMeta per connection
  char* bounce = nullptr;
  char* buffers = nullptr;
  uint64_t bounce_stride_bytes = 0;
  uint64_t message_stride_bytes = 0;
  uint64_t slice_bytes = 0;
  uint32_t destination_offset_bytes = 0;  // from `data` to the first byte
  uint32_t connections = 0;
  uint32_t rounds = 0;
  uint32_t slots = 0;
  uint32_t at_once = 1;  // messages that one call unpacks
  uint32_t passes = 0;   // over all rounds, in one launch

  constexpr uint64_t count_messages() const { return static_cast<uint64_t>(connections) * rounds * slots; }
  constexpr uint64_t message_index(uint32_t connection, uint32_t round, uint32_t slot) const {
    return (static_cast<uint64_t>(connection) * rounds + round) * slots + slot;
  }
  constexpr uint64_t bounce_offset(uint32_t connection, uint32_t round) const {
    return (static_cast<uint64_t>(connection) * rounds + round) * bounce_stride_bytes;
  }
  constexpr uint64_t bounce_bytes() const { return bounce_offset(connections, 0); }
  constexpr uint64_t buffer_bytes() const { return count_messages() * message_stride_bytes; }
  // The offset of NCCL's `data`, the address passed to irecv.
  constexpr uint64_t data_offset(uint64_t message) const {
    return message * message_stride_bytes + kGuardBeforeBytes;
  }
  constexpr uint64_t payload_bytes() const { return count_messages() * slice_bytes * passes; }
};

// The times of one message: when its count was seen, and when its last byte was stored. The clock's steps may
// be as long as the measured time; the multiprocessor's cycles are finer.
struct LatencySample {
  uint64_t begin_ns, end_ns;
  uint64_t begin_cycles, end_cycles;
};

struct LatencyRun {
  UnpackRun run;
  void* samples = nullptr;  // a LatencySample a message
  void* done = nullptr;     // uint64_t: messages finished
  uint64_t messages = 0;
  uint64_t timeout_ns = 0;  // limit of each wait, after which the kernel ends early
};

}  // namespace verbena::tools::unpack
