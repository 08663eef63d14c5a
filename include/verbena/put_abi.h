// Layout of the put queues, through which the kernels of a rank request RDMA from the host's proxy thread.
// Kernels write descriptors with device/symm_queue.cuh; the proxy reads them with device/put_queue.
//
// A queue is a ring of descriptors in pinned host memory. Any thread of a kernel can be a producer: it waits
// for free space, reserves positions and fills them in. Positions only grow; position p is in slot p % depth.
// The turn of position p is p / depth + 1. The proxy takes descriptors in order, each as soon as both words
// of its second half contain the turn of its position, and publishes its progress. It posts the operations
// for one peer in the order of the queue, to the lane of the queue (endpoint.h). Operations for different
// peers do not wait for each other.
#ifndef VERBENA_PUT_ABI_H
#define VERBENA_PUT_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

namespace verbena {

inline constexpr uint32_t kPutMaxQueues = 16;
inline constexpr uint32_t kPutMaxDepthShift = 20;

enum class PutOperation : uint8_t {
  kPut = 1,    // copies bytes from this rank's heap to the peer's
  kGet,        // copies bytes from the peer's heap to this rank's
  kWriteWord,  // writes a 64-bit word
  kAddWord,    // adds to a 64-bit word
  kSetSignal,  // sets a signal, which is the sum of two words of the peer: see SymmContext::signals
  // Delays later positions of this queue for the peer until all positions below `operand` of another queue
  // for the same peer are complete.
  kAwaitQueue,
  kFetchAdd,     // kAddWord with a reply: the previous value of the word
  kCompareSwap,  // sets a 64-bit word to `operand` if it is `extent`; the reply is the previous value
  kRows,         // repeats the next position, a kPut or kGet to the same peer, for a number of rows
};

// Offsets are bytes from the start of a heap, below 2^48. Words are aligned to 8 bytes.
inline constexpr uint32_t kPutTurnShift = 48;  // the turn is the upper 16 bits of `place` and of `action`
inline constexpr uint64_t kPutMaxOffset = (uint64_t{1} << kPutTurnShift) - 1;
inline constexpr uint32_t kPutOperationShift = 32;  // 8 bits of `action`; the next 8 bits are flags
// Flag: the proxy marks the reply of this position once the position is complete, without waiting for earlier
// positions.
inline constexpr uint64_t kPutReports = uint64_t{1} << 40;

// A producer writes the first half (operand, extent) before the second half (place, action). The second half
// is one 16-byte store, a release at system scope; its two words may become visible in either order.
struct alignas(32) PutDescriptor {
  // kPut, kGet: offset in this rank's heap; kAwaitQueue: a position of the other queue; kRows: bytes between
  // rows in this rank's heap; other operations: the value
  uint64_t operand;
  // kPut, kGet: bytes of one row; kSetSignal: offset of the word that LSA ranks set; kAwaitQueue: number of
  // the other queue; kCompareSwap: the expected value; kRows: bytes between rows in the peer's heap; other
  // operations: 0
  uint64_t extent;
  uint64_t place;   // turn | offset in the peer's heap; kRows: turn | number of rows
  uint64_t action;  // turn | flags | operation | world rank of the peer, 32 bits
};
static_assert(sizeof(PutDescriptor) == 32, "verbena: a descriptor is written by two stores");

// Written by producers, in GPU memory.
struct alignas(128) PutCursors {
  uint64_t reserved;        // the next position to be reserved
  uint64_t consumed_seen;   // PutProgress::consumed, as a producer last read it
  uint64_t completed_seen;  // PutProgress::completed, as a producer last read it
};

// Written by the proxy, in pinned host memory. Each counter has its own cache line.
struct alignas(128) PutProgress {
  alignas(64) uint64_t consumed;  // the slots of positions below this one are free
  alignas(
      64) uint64_t completed;  // positions below this one are complete at the peer; data of gets has arrived
};

// The reply to one position, in pinned host memory. When a position p that wants a reply is complete, the
// proxy sets `told` to p + 1. If the reply has a value, the reader owns it until it adds kPutReplyLeft to
// `told`, after it has read the value or has given up; only then does the proxy reuse the slot. A reply
// without a value has no owner, and the reply to a later position may overwrite it.
struct alignas(16) PutReply {
  uint64_t value;
  uint64_t told;
};
inline constexpr uint64_t kPutReplyLeft = uint64_t{1} << 63;

// All queues of a rank, with addresses that are valid on the GPU.
struct PutQueueView {
  PutDescriptor* ring;          // [count][depth]
  PutCursors* cursors;          // [count]
  const PutProgress* progress;  // [count]
  PutReply* replies;            // [count][depth]
  uint32_t count;               // number of queues, 0 to kPutMaxQueues
  uint32_t depth_shift;         // each queue has 2^depth_shift slots, at least 2
  uint32_t swaps_words;         // 1: kCompareSwap is supported
};

}  // namespace verbena

#endif
