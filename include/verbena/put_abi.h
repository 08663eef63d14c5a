// Memory layout of the put queues, through which the kernels of a rank ask the host's proxy thread for RDMA
// operations. Kernels write descriptors with the functions of device/symm_queue.cuh; the proxy reads them
// with the code in device/put_queue.
//
// A queue is a ring of descriptors in pinned host memory. Any thread of a kernel can be a producer. A
// producer waits for free slots, reserves positions, and writes the descriptors of these positions. Positions
// only grow; the descriptor of position p is in slot p % depth. The number p / depth + 1 is called the turn
// of position p, and the producer writes it to both words of the descriptor's second half. The proxy takes
// the descriptors in order, each as soon as both words contain the turn of the descriptor's position, and
// publishes its progress (PutProgress). For each peer, the proxy posts the operations in the order of the
// queue, on the queue's lane (endpoint.h). Operations for different peers do not wait for each other.
#ifndef VERBENA_PUT_ABI_H
#define VERBENA_PUT_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

namespace verbena {

inline constexpr uint32_t kPutMaxQueues = 16;
inline constexpr uint32_t kPutMaxDepthShift = 20;

enum class PutOperation : uint8_t {
  kPut = 1,    // copies bytes from this rank's heap to the peer's heap
  kGet,        // copies bytes from the peer's heap to this rank's heap
  kWriteWord,  // writes a 64-bit word
  kAddWord,    // adds to a 64-bit word
  kSetSignal,  // sets a signal, which is the sum of two words of the peer (SymmContext::signals)
  // Delays this queue's later operations on the peer until all operations on the peer that are in queue
  // `extent`, at positions below `operand`, are complete.
  kAwaitQueue,
  kFetchAdd,     // adds to a 64-bit word; the reply is the previous value of the word
  kCompareSwap,  // sets a word to `operand` if it equals `extent`; the reply is the previous value
  kRows,         // repeats the operation of the next position (kPut or kGet, same peer) for each row
};

// Offsets are bytes from the start of a heap, below 2^48. Words are aligned to 8 bytes.
inline constexpr uint32_t kPutTurnShift = 48;  // the turn is the upper 16 bits of `place` and of `action`
inline constexpr uint64_t kPutMaxOffset = (uint64_t{1} << kPutTurnShift) - 1;
inline constexpr uint32_t kPutOperationShift = 32;  // 8 bits of `action`; the next 8 bits are flags
// A flag in `action`: once this position is complete, the proxy sets the position's reply, without waiting
// for earlier positions.
inline constexpr uint64_t kPutReports = uint64_t{1} << 40;

// A producer writes the first half (operand, extent) before the second half (place, action). The producer
// writes the second half by one 16-byte store, which is a release at system scope. The two words of this half
// may become visible in either order.
struct alignas(32) PutDescriptor {
  // Depends on the operation:
  //   kPut, kGet        offset in this rank's heap
  //   kAwaitQueue       a position of the awaited queue
  //   kRows             stride of the rows in this rank's heap, in bytes
  //   other operations  the value
  uint64_t operand;
  // Depends on the operation:
  //   kPut, kGet        length of the data (with kRows, of one row), in bytes
  //   kSetSignal        offset of the word that LSA ranks (symm_abi.h) set
  //   kAwaitQueue       number of the awaited queue
  //   kCompareSwap      the expected value
  //   kRows             stride of the rows in the peer's heap, in bytes
  //   other operations  0
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
  // The slots of all positions below this number are free.
  alignas(64) uint64_t consumed;
  // The operations at all positions below this number are complete at the peer, and the data of gets has
  // arrived.
  alignas(64) uint64_t completed;
};

// The reply to one position, in pinned host memory. When a position p with a reply is complete, the proxy
// sets `told` to p + 1. If the reply has a value, the thread that waits for the value owns the reply. After
// this thread has read the value, or has given up, the thread adds kPutReplyLeft to `told`. The proxy reuses
// the slot only after this addition. A reply without a value has no owner, and the reply to a later position
// may overwrite it.
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
  uint32_t count;               // number of queues, at most kPutMaxQueues
  uint32_t depth_shift;         // each queue has 2^depth_shift slots, at least 2
  uint32_t swaps_words;         // 1 if kCompareSwap is supported
};

}  // namespace verbena

#endif
