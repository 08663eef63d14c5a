// The structures by which the host describes a team and its symmetric memory to kernels. Kernels only read
// these structures.
//
// Each rank has a heap, which is one range of GPU addresses that contains all windows. A window has the same
// offset in the heaps of all ranks; in this sense the memory is symmetric. To access memory of a peer, a
// kernel passes the local address at the same offset, which is called the symmetric address. The ranks that
// reach each other by loads and stores, over NVLink or on the same GPU, are called LSA ranks (load/store
// accessible). Each rank maps every LSA peer's heap as one contiguous range, so a single delta per peer is
// enough: adding the delta to a symmetric address gives the address of the peer's memory.
#ifndef VERBENA_SYMM_ABI_H
#define VERBENA_SYMM_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

#include "verbena/put_abi.h"

namespace verbena {

// Values of SymmContext::type. The type says which backend's network reaches the members that loads and
// stores do not reach. Each backend has its own context type, which derives from SymmContext.
inline constexpr int32_t kSymmNccl = 0;
inline constexpr int32_t kSymmNvshmem = 1;
inline constexpr int32_t kSymmNcclx = 2;
inline constexpr int32_t kSymmVerbena = 3;
inline constexpr int32_t kSymmFirstOther = 64;  // first type for backends of applications

inline constexpr uint32_t kSymmSignals = 256;  // signals of a team
// A team has this number of barriers among its LSA ranks, and the same number of barriers of the whole team.
// The number is about three times the number of multiprocessors of the largest GPU.
inline constexpr uint32_t kSymmBarriers = 512;
// Each barrier has a row of words. The rows of the barriers among the LSA ranks come first, then the rows of
// the barriers of the whole team.
inline constexpr uint32_t kSymmBarrierRows = 2 * kSymmBarriers;
// Max blocks of a workspace. Each block has a barrier. The limit exceeds the number of multiprocessors of any
// GPU.
inline constexpr uint32_t kSymmMaxBlocks = kSymmBarriers;
inline constexpr uint32_t kSymmTurns = 4;       // number of slots from each member to each other member;
                                                // calls use them round robin
inline constexpr uint32_t kSymmSlotUnit = 128;  // bytes; a slot's address and length are multiples of this
                                                // unit
inline constexpr int32_t kSymmInlineDeltas = 8;
inline constexpr int64_t kSymmOutOfReach = INT64_MIN;

// The result of a call that may wait or fail. The extern "C" functions return it as an int32.
enum class SymmStatus : int32_t {
  kDone = 0,
  kTimedOut = -1,       // this wait, or another wait of the team, took longer than timeout_ns
  kAborted = -2,        // the context was aborted: SymmContext::abort_word
  kInvalid = -3,        // a rank, signal or barrier does not exist, or an address is not symmetric
  kUnreachable = -4,    // neither loads and stores nor a NIC can reach the peer
  kNetworkFailed = -5,  // a peer or the network failed: verbena_context_get_error() has the reason
  kRefused = -6,        // the proxy refused an operation, such as a put outside all windows
};

// Values of SymmContext::abort_word. A value other than 0 ends all waits of the context on this rank. The
// word keeps its first value other than 0.
enum class SymmAbort : uint32_t {
  kNone = 0,
  kByUser = 1,  // waits return kAborted; waits also return kAborted for values that have no name here
  kNetworkFailed = 2,
  kRefused = 3,
};

// The failure word (SymmContext::failure) describes the first wait of a team that timed out, or the first
// invalid call of a member. The word is 0 if nothing has failed. Otherwise it has four fields:
//   from bit 0    kind, a SymmWait
//   from bit 8    number of the barrier or signal
//   from bit 24   member that was waited for, or that made the invalid call
//   from bit 44   member that waited
enum class SymmWait : uint8_t {
  kBarrier = 1,     // barrier of the whole team
  kLsaBarrier = 2,  // barrier of the LSA ranks
  kSignal = 3,      // signal; any member may be the sender
  kRequest = 4,     // free entry of a put queue, or arrival of the data of a get
  kCompletion = 5,  // symm_quiet, symm_flush, or the first half of a barrier
  kPacket = 6,      // packet of low_latency.cuh; the number is the block index
  kWord = 7,        // word in a window
  kCall = 8,        // not a wait, but a call whose arguments are invalid or differ from the peers' arguments
};
inline constexpr uint32_t kSymmFailureNumber = 8, kSymmFailurePeer = 24, kSymmFailureRank = 44;  // bits
inline constexpr uint32_t kSymmFailureNumberBits = 16, kSymmFailureRankBits = 20;
inline constexpr uint32_t kSymmNobody =
    (uint32_t{1} << kSymmFailureRankBits) - 1;  // the wait was not for a specific member

// Comparisons of signed integers.
enum class SymmCompare : int32_t { kEqual = 1, kNotEqual, kGreater, kGreaterEqual, kLess, kLessEqual };
enum class SymmSignalOperation : int32_t { kSet = 0, kAdd = 1, kIncrement = 2 };  // kIncrement adds 1

// A piece of symm_put_pieces(): bytes to copy to the peer. `destination` is an address in this rank's window;
// the bytes go to the same offset in the peer's window.
struct SymmPiece {
  void* destination;
  const void* source;
  uint64_t length_bytes;
};

// The range of addresses [begin, end) that the application registered as a window. Adding `delta` to an
// address in this range gives the symmetric address. The host may change the table while kernels run; an
// entry is valid while `end` is not 0.
struct SymmAlias {
  uint64_t begin, end;
  uint64_t delta;
};
inline constexpr uint32_t kSymmMaxAliases = 256;
struct SymmAliases {
  uint64_t count;  // only the first `count` entries can be valid
  SymmAlias entries[kSymmMaxAliases];
};

namespace device {
struct TraceRing;
}

// Faults that a test injects through SymmProbes::faults, in kernels compiled with VERBENA_DEVICE_FAULTS. Each
// fault happens once, because the first affected call clears the fault's bit. The exception is kDelayPuts,
// which stays set.
enum class SymmFault : uint64_t {
  kDelayPuts = 1,   // each put by stores pauses for about 1 us after it has stored its data
  kDropSignal = 2,  // a signal is not sent, but the call returns kDone
  kLateWait = 4,    // a wait returns as if it had timed out
  kForceAbort = 8,  // a wait returns as if the context had been aborted
};

// Counters for SymmContext::probes. Kernels that were compiled with VERBENA_DEVICE_PROBES increment them. The
// caller allocates the counters in memory that both the GPU and the reader can access, and sets them to zero.
// A call by a group of threads is counted once.
struct alignas(16) SymmProbes {
  uint64_t puts, put_bytes;
  uint64_t gets, get_bytes;
  uint64_t signals;          // signals sent
  uint64_t updates;          // updates of words in windows (symm_word.cuh)
  uint64_t waits, wait_ns;   // waits for signals, words, completion, and the second half of barriers
  uint64_t late_waits;       // waits that timed out
  uint64_t faults;           // SymmFault bits, written by the host
  device::TraceRing* trace;  // may be null
  uint64_t reserved;         // 0
};

// A team, from the point of view of one rank. All pointers are valid on this rank's GPU. Pass the context to
// kernels by value, as a __grid_constant__, so that it is in constant memory. Otherwise the kernel has to
// read the context again from global memory after each acquire, which takes 0.25 us each time. The context
// types of other backends derive from SymmContext. The data members of a derived type start directly after
// the SymmContext, aligned to 16 bytes.
struct SymmContext {
  int32_t type;
  int32_t rank, world_size;  // in the world team
  int32_t team_size, team_rank;
  int32_t lsa_size;       // number of members that this rank reaches by loads and stores, including itself
  int32_t lsa_base_rank;  // team rank of the first of these members
  int32_t has_remote;     // 1 if some members can be reached only through NICs, which also deliver the
                          // signals of these members
  uint64_t lsa_mask;      // bit r: loads and stores reach team rank r; valid for teams of at most 64 ranks
  // One delta for each member, in bytes. Adding the delta to an address of this rank gives the member's
  // address at the same offset. The delta is kSymmOutOfReach if loads and stores do not reach the member.
  // Teams of up to kSymmInlineDeltas ranks use inline_deltas; larger teams use more_deltas.
  int64_t inline_deltas[kSymmInlineDeltas];
  const int64_t* more_deltas;     // [team_size], or null
  uint64_t heap_begin, heap_end;  // addresses of this rank's heap
  uint64_t multicast_delta;       // bytes to add to an address to get the LSA ranks' multicast address; 0 if
                                  // there is none
  // Signals and arrivals are in the heap, at the same offset on all ranks. A signal is the sum of two words:
  // LSA ranks change the word in `signals`, and NICs change the word in `remote_signals`. Two words are
  // needed because GPU atomics and NIC atomics are not atomic with respect to each other.
  uint64_t* signals;         // [kSymmSignals]
  uint64_t* remote_signals;  // [kSymmSignals]
  uint64_t* arrivals;        // [kSymmBarrierRows][team_size]: the barrier round that each rank has reached
  // The rounds are in memory that only this rank uses.
  uint64_t* rounds;  // [kSymmBarrierRows]: the barrier round that this rank has reached
  // Address of the failure word (see SymmWait), which is in the heap. A value other than 0 ends all waits of
  // the team on this rank. If the pointer is null, failures are not recorded.
  uint64_t* failure;
  uint64_t timeout_ns;
  const uint32_t* abort_word;  // a SymmAbort; a value other than 0 ends all waits. Null if the context cannot
                               // be aborted
  // The put queues for members that loads and stores do not reach, shared by all teams of a rank. If there
  // are no queues, operations on these members return kUnreachable.
  PutQueueView queues;
  // The world rank of each member, for use in put descriptors. Stored in the same way as inline_deltas.
  int32_t inline_world_ranks[kSymmInlineDeltas];
  const int32_t* more_world_ranks;  // [team_size], or null
  // 1 if a GPU sees NIC writes to its own memory in order, but may see NIC writes to other GPUs' memory out
  // of order. In a barrier of the whole team, the LSA ranks then wait for each other a second time.
  uint32_t meets_twice;
  // Block b uses put queue (first_queue + b) % queues.count. Different workspaces have different values of
  // first_queue, so that kernels of different workspaces share queues less often. Two requests are ordered
  // only if the same block posts them with the same context.
  uint32_t first_queue;
  const SymmAliases* aliases;  // aliases of registered memory, or null
  // Counters, traces and faults of calls. Null, unless the application sets this pointer in the copy of the
  // context that it passes to a kernel.
  SymmProbes* probes;
};

// State of a workspace for each block.
struct SymmBlocks {
  // [count], in memory that only this rank uses. For each block, the number of the last LowLatency call that
  // the block has finished. The numbers are kept in memory, so that each launch of a CUDA graph continues
  // where the previous launch ended.
  uint64_t* epochs;
  // The heap contains [count][kSymmTurns][team_size] slots of slot_bytes each. Block b of member r writes to
  // slot [b][t][r] of the other members, where t is the call number modulo kSymmTurns.
  char* slots;
  uint64_t slot_bytes;  // a multiple of kSymmSlotUnit; 0 if the workspace has no slots
  uint64_t count;       // number of blocks, at most kSymmMaxBlocks
};

// A workspace: a context with its own signals, barriers and failure word, for one stream or purpose. Kernels
// that run at the same time do not interfere with each other if each uses a different workspace. A pointer to
// a workspace may be used as a pointer to its context, which is the first member.
template <typename Context = SymmContext>
struct SymmWorkspace {
  Context context;
  SymmBlocks blocks;
};

}  // namespace verbena

#endif
