// The put queues of a rank: how its kernels ask the host's proxy for RDMA. Structures only; kernels write
// them by device/symm_queue.cuh, the proxy reads them by device/put_queue.
//
// A queue is a ring of descriptors in pinned host memory. A producer, any thread of a kernel, reserves
// positions (they only grow; position p lies in slot p modulo depth) where there is room, and fills them in.
// The proxy takes a descriptor when both words of its second half carry the turn of its position, in order,
// and tells how far it is. What it does for one peer keeps the order of the queue; no peer waits for another.
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
  // Later positions of this queue for the peer begin when another queue's positions before `operand` for that
  // peer are complete.
  kAwaitQueue,
  kFetchAdd,     // kAddWord, with a reply: the word's value before
  kCompareSwap,  // 64 bits become `operand` where they are `extent`; with a reply, as kFetchAdd
  kRows,         // the number of rows of the next position, a kPut or kGet of the same peer
};

// Offsets are bytes from the start of a heap, below 2^48. Words lie at multiples of 8.
inline constexpr uint32_t kPutTurnShift = 48;  // of the upper 16 bits of `place` and of `action`
inline constexpr uint64_t kPutMaxOffset = (uint64_t{1} << kPutTurnShift) - 1;
inline constexpr uint32_t kPutOperationShift = 32;  // of 8 bits of `action`; the next 8 are flags
// The position's reply is marked when it is complete by itself, whatever is before it in the queue.
inline constexpr uint64_t kPutReports = uint64_t{1} << 40;

// A slot's first half is ordered before its second, which one 16-byte store writes, a release at system
// scope. That store's two words may appear in either order.
struct alignas(32) PutDescriptor {
  // kPut, kGet: the offset in this rank's heap; kAwaitQueue: a position; kRows: bytes from one row to the
  // next here; otherwise a value
  uint64_t operand;
  // kPut, kGet: bytes, of one row; kSetSignal: offset of the word that ranks in reach set; kAwaitQueue: the
  // other queue's number; kCompareSwap: the value that is expected; kRows: bytes from one row to the next at
  // the peer; otherwise 0
  uint64_t extent;
  uint64_t place;   // turn | offset in the peer's heap; kRows: turn | rows
  uint64_t action;  // turn | flags | operation | the peer's rank in the world, 32 bits
};
static_assert(sizeof(PutDescriptor) == 32, "verbena: a descriptor is written by two stores");

// Producers', in the GPU's memory.
struct alignas(128) PutCursors {
  uint64_t reserved;        // the next position to be reserved
  uint64_t consumed_seen;   // PutProgress::consumed as some producer last read it
  uint64_t completed_seen;  // PutProgress::completed, as some producer last read it
};

// The proxy's, in pinned host memory; each on a separate cache line.
struct alignas(128) PutProgress {
  alignas(64) uint64_t consumed;  // positions before this one may be reserved a ring's length later
  alignas(
      64) uint64_t completed;  // positions before this one are remotely complete, and what they got is here
};

// What comes back for one position, in pinned host memory. `told` only grows: the proxy makes it p + 1 when
// position p, which asked for that, is complete. The slot of a position with a value in its reply is used
// again when the reader has left it, by adding kPutReplyLeft, with the value or having given up; other
// replies have no owner, and may be overwritten by a later position's.
struct alignas(16) PutReply {
  uint64_t value;
  uint64_t told;
};
inline constexpr uint64_t kPutReplyLeft = uint64_t{1} << 63;

// All queues of a rank, as kernels address them.
struct PutQueueView {
  PutDescriptor* ring;          // [count][depth]
  PutCursors* cursors;          // [count]
  const PutProgress* progress;  // [count]
  PutReply* replies;            // [count][depth]
  uint32_t count;               // 0: there are none; at most kPutMaxQueues
  uint32_t depth_shift;         // the depth of each is 2^depth_shift, at least 2
  uint32_t swaps_words;         // 1: there is kCompareSwap
};

}  // namespace verbena

#endif
