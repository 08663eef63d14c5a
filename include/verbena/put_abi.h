// The put queues of a rank: how its kernels ask the host's proxy for RDMA. Structures only; kernels write
// them by device/symm_queue.cuh, the proxy reads them by device/put_queue.
//
// A queue is a ring of descriptors in pinned host memory. A producer, any thread of a kernel, reserves
// positions (they only grow; position p lies in slot p modulo depth) where there is room, and fills them in.
// The proxy takes a descriptor when both words of its second half carry the turn of its position, in order,
// and tells how far it is.
#ifndef VERBENA_PUT_ABI_H
#define VERBENA_PUT_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

namespace verbena {

inline constexpr uint32_t kPutMaxQueues = 16;
inline constexpr uint32_t kPutMaxDepthShift = 20;

enum class PutOperation : uint8_t {
  kPut = 1,    // bytes of this heap to the peer's
  kGet,        // bytes of the peer's heap to this one
  kWriteWord,  // 64 bits
  kAddWord,    // to 64 bits
  kSetSignal,  // the sum of two words of the peer becomes the value: see SymmContext::signals
  // What is behind it in its queue begins when another queue's positions before `operand` are complete.
  kAwaitQueue,
};

// Offsets are bytes from the start of a heap, below 2^48. Words lie at multiples of 8.
inline constexpr uint32_t kPutTurnShift = 48;  // of the upper 16 bits of `place` and of `action`
inline constexpr uint64_t kPutMaxOffset = (uint64_t{1} << kPutTurnShift) - 1;
inline constexpr uint32_t kPutOperationShift = 32;  // of 8 bits of `action`; the next 8 are 0

// A slot's first half is ordered before its second, which one 16-byte store writes, a release at system
// scope. That store's two words may appear in either order.
struct alignas(32) PutDescriptor {
  uint64_t operand;  // kPut, kGet: the offset in this rank's heap; kAwaitQueue: a position; otherwise a value
  // kPut, kGet: bytes; kSetSignal: offset of the word that ranks in reach set; kAwaitQueue: the other queue's
  // number; otherwise 0
  uint64_t extent;
  uint64_t place;   // turn | offset in the peer's heap
  uint64_t action;  // turn | operation | the peer's rank in the world, 32 bits
};
static_assert(sizeof(PutDescriptor) == 32, "verbena: a descriptor is written by two stores");

// Producers', in the GPU's memory.
struct alignas(128) PutCursors {
  uint64_t reserved;        // the next position to be reserved
  uint64_t consumed_seen;   // PutProgress::consumed as some producer last read it
  uint64_t completed_seen;  // PutProgress::completed, likewise
};

// The proxy's, in pinned host memory; each on a line of its own.
struct alignas(128) PutProgress {
  alignas(64) uint64_t consumed;  // positions before this one may be reserved a ring's length later
  alignas(
      64) uint64_t completed;  // positions before this one are remotely complete, and what they got is here
};

// All queues of a rank, as kernels address them.
struct PutQueueView {
  PutDescriptor* ring;          // [count][depth]
  PutCursors* cursors;          // [count]
  const PutProgress* progress;  // [count]
  uint32_t count;               // 0: there are none; at most kPutMaxQueues
  uint32_t depth_shift;         // the depth of each is 2^depth_shift, at least 2
};

}  // namespace verbena

#endif
