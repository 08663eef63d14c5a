// What a kernel of verbena-unpack works on, and where every byte of it belongs. Read by the host, by our
// kernels and by the kernel around NCCL's code, hence self-contained: C++17, --expt-relaxed-constexpr.
//
// One block is one receive connection with an unpack queue of its own. Its messages lie in `rounds` bounce
// regions: the same descriptors are used with another base for each, so that the data exceeds any cache. A
// message's buffer is one of `message_stride_bytes` each, in the order of message_index; all of a buffer that
// is not the message is guard bytes.
#pragma once
#include <stdint.h>

namespace verbena::tools::unpack {

inline constexpr uint32_t kGuardBeforeBytes = 256;
inline constexpr uint32_t kGuardAfterBytes = 64;  // at least
inline constexpr uint64_t kGuardWord = 0xA5A5A5A5A5A5A5A5ULL;
inline constexpr uint64_t kUnusedWord = 0xEEEEEEEEEEEEEEEEULL;  // of bounce memory that no descriptor names

struct UnpackRun {
  void* meta = nullptr;  // a NetUnpackMeta a connection
  char* bounce = nullptr;
  char* buffers = nullptr;
  uint64_t bounce_stride_bytes = 0;
  uint64_t message_stride_bytes = 0;
  uint64_t slice_bytes = 0;
  uint32_t destination_offset_bytes = 0;  // of the first byte, from `data`
  uint32_t connections = 0;
  uint32_t rounds = 0;
  uint32_t slots = 0;
  uint32_t at_once = 1;  // messages that one call places
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
  // What NCCL calls `data`: the address given to irecv.
  constexpr uint64_t data_offset(uint64_t message) const {
    return message * message_stride_bytes + kGuardBeforeBytes;
  }
  constexpr uint64_t payload_bytes() const { return count_messages() * slice_bytes * passes; }
};

}  // namespace verbena::tools::unpack
