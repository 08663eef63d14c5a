// The structures that describe a team with symmetric memory to kernels. The host fills them and passes them
// to kernels, which only read them.
//
// Each rank has a heap, one range of GPU addresses that contains every window. A window has the same offset
// in the heaps of all ranks: the memory is symmetric. For memory of a peer, kernels pass this rank's address
// of the same offset, the symmetric address. Peers that loads and stores reach, over NVLink or on the same
// GPU, form the LSA domain. Their heaps are mapped contiguously, so each peer has a single delta: adding it
// to a symmetric address gives the peer's address.
#ifndef VERBENA_SYMM_ABI_H
#define VERBENA_SYMM_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

#include "verbena/put_abi.h"

namespace verbena {

// Values of SymmContext::type: the backend whose network reaches the members that loads and stores do not
// reach. The type also determines which structure derives from SymmContext.
inline constexpr int32_t kSymmNccl = 0;
inline constexpr int32_t kSymmNvshmem = 1;
inline constexpr int32_t kSymmNcclx = 2;
inline constexpr int32_t kSymmVerbena = 3;
inline constexpr int32_t kSymmFirstOther = 64;  // first type for backends of applications

inline constexpr uint32_t kSymmSignals = 256;  // signals of a team
// Number of a team's barriers of each kind: about three for each multiprocessor of the largest GPU.
inline constexpr uint32_t kSymmBarriers = 512;
// Rows of barrier words: first the barriers among the LSA ranks, then the barriers of the whole team.
inline constexpr uint32_t kSymmBarrierRows = 2 * kSymmBarriers;
// Max blocks of a workspace, each of which has a barrier. More than any GPU has multiprocessors.
inline constexpr uint32_t kSymmMaxBlocks = kSymmBarriers;
inline constexpr uint32_t kSymmTurns = 4;       // slots from one member to another, used round robin
inline constexpr uint32_t kSymmSlotUnit = 128;  // bytes: alignment of a slot's address and length
inline constexpr int32_t kSymmInlineDeltas = 8;
inline constexpr int64_t kSymmOutOfReach = INT64_MIN;

// The result of a call that may wait or fail; int32 in the extern "C" functions.
enum class SymmStatus : int32_t {
  kDone = 0,
  kTimedOut = -1,       // this wait, or another wait of the team, took longer than timeout_ns
  kAborted = -2,        // the context was aborted: SymmContext::abort_word
  kInvalid = -3,        // no such rank, signal or barrier, or an address that is not symmetric
  kUnreachable = -4,    // neither loads and stores nor a NIC reach the peer
  kNetworkFailed = -5,  // a peer or the network failed: verbena_context_get_error() has the reason
  kRefused = -6,        // the proxy refused an operation, such as one on an address outside all windows
};

// Values of SymmContext::abort_word, which ends the context on this rank. The first value other than 0 stays.
enum class SymmAbort : uint32_t {
  kNone = 0,
  kByUser = 1,  // waits return kAborted, as for any value that has no name here
  kNetworkFailed = 2,
  kRefused = 3,
};

// The failure word (SymmContext::failure) describes the first wait of a team that timed out, or the first
// invalid call, on any member. 0: no failure. Otherwise it has four fields:
//   from bit 0    kind, a SymmWait
//   from bit 8    number of the barrier or signal
//   from bit 24   member that was waited for, or that made the invalid call
//   from bit 44   member that waited
enum class SymmWait : uint8_t {
  kBarrier = 1,     // barrier of the whole team
  kLsaBarrier = 2,  // barrier of the LSA ranks
  kSignal = 3,      // signal, which any member may send
  kRequest = 4,     // free entry of a put queue, or the data of a get
  kCompletion = 5,  // symm_quiet, symm_flush, or the first half of a barrier
  kPacket = 6,      // packet of low_latency.cuh; the number is the block index
  kWord = 7,        // word in a window
  kCall = 8,        // not a wait: the member's arguments are invalid, or differ from its peers' arguments
};
inline constexpr uint32_t kSymmFailureNumber = 8, kSymmFailurePeer = 24, kSymmFailureRank = 44;  // bits
inline constexpr uint32_t kSymmFailureNumberBits = 16, kSymmFailureRankBits = 20;
inline constexpr uint32_t kSymmNobody =
    (uint32_t{1} << kSymmFailureRankBits) - 1;  // the wait was not for one specific member

// Comparisons of signed integers.
enum class SymmCompare : int32_t { kEqual = 1, kNotEqual, kGreater, kGreaterEqual, kLess, kLessEqual };
enum class SymmSignalOperation : int32_t { kSet = 0, kAdd = 1, kIncrement = 2 };  // kIncrement adds 1

// The addresses at which the application registered a window. Adding `delta` to an address from `begin` up to
// `end` gives the symmetric address. The host changes the table while kernels run: an entry is valid while
// `end` is not 0.
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

// Faults that a test injects through SymmProbes::faults, in kernels compiled with VERBENA_DEVICE_FAULTS. A
// fault happens once: the first affected call clears its bit. Only kDelayPuts stays set.
enum class SymmFault : uint64_t {
  kDelayPuts = 1,   // each put waits about a microsecond between its data and the operation that follows
  kDropSignal = 2,  // a signal is not sent, but its sender gets kDone
  kLateWait = 4,    // a wait ends as if it had timed out
  kForceAbort = 8,  // a wait ends as if the context had been aborted
};

// Counters for SymmContext::probes, which kernels compiled with VERBENA_DEVICE_PROBES increment. The caller
// zeroes them, in memory that the GPU and the reader can access. A call by a group of threads counts once.
struct alignas(16) SymmProbes {
  uint64_t puts, put_bytes;
  uint64_t gets, get_bytes;
  uint64_t signals;          // signals sent
  uint64_t updates;          // updates of words in windows (symm_word.cuh)
  uint64_t waits, wait_ns;   // waits for signals, words, completion, and the second half of barriers
  uint64_t late_waits;       // waits that timed out
  uint64_t faults;           // set of SymmFault, written by the host
  device::TraceRing* trace;  // may be null
  uint64_t reserved;         // 0
};

// A team, as a kernel of one rank sees it. All pointers are valid on this rank's GPU. Pass the context to
// kernels by value, as a __grid_constant__, so that it is in constant memory. Otherwise the kernel reads it
// again from global memory after each acquire, which takes 0.25 us each time.
// The contexts of other backends derive from SymmContext. Their members start directly after it, aligned to
// 16 bytes.
struct SymmContext {
  int32_t type;
  int32_t rank, world_size;  // in the world team
  int32_t team_size, team_rank;
  int32_t lsa_size;       // number of members that loads and stores reach, including this rank
  int32_t lsa_base_rank;  // team rank of the first of these members
  int32_t has_remote;     // 1: loads and stores do not reach all members; NICs deliver the others' signals
  uint64_t lsa_mask;      // bit r: loads and stores reach team rank r; valid for teams of at most 64 ranks
  // Per member, bytes to add to an address of this rank to get the member's address; kSymmOutOfReach if loads
  // and stores do not reach the member. inline_deltas serves teams of up to kSymmInlineDeltas ranks,
  // more_deltas larger teams.
  int64_t inline_deltas[kSymmInlineDeltas];
  const int64_t* more_deltas;     // [team_size], or null
  uint64_t heap_begin, heap_end;  // addresses of this rank's heap
  uint64_t multicast_delta;       // bytes to the multicast address of all LSA ranks; 0: no multicast
  // In the heap, at the same offset on all ranks. A signal is the sum of two words, because atomics of GPUs
  // and NICs are not atomic with respect to each other: LSA ranks change `signals`, NICs change
  // `remote_signals`.
  uint64_t* signals;         // [kSymmSignals]
  uint64_t* remote_signals;  // [kSymmSignals]
  uint64_t* arrivals;        // [kSymmBarrierRows][team_size]: the round that each rank has reached
  // In memory that only this rank uses.
  uint64_t* rounds;  // [kSymmBarrierRows]: the round that this rank has reached
  // The failure word, in the heap: see SymmWait. A value other than 0 ends all waits of the team on this
  // rank. Null: failures are not recorded.
  uint64_t* failure;
  uint64_t timeout_ns;
  const uint32_t* abort_word;  // a SymmAbort; a value other than 0 ends all waits. Null: cannot be aborted
  // The put queues for members that loads and stores do not reach, shared by all teams of a rank. If there
  // are no queues, operations on these members return kUnreachable.
  PutQueueView queues;
  // The world rank of each member, which descriptors use. Stored like the deltas.
  int32_t inline_world_ranks[kSymmInlineDeltas];
  const int32_t* more_world_ranks;  // [team_size], or null
  // 1: a GPU sees NIC writes to its own memory in order, but not NIC writes to other GPUs. In a barrier of
  // the whole team, the LSA ranks then wait for each other a second time.
  uint32_t meets_twice;
  // Block b uses put queue (first_queue + b) % queues.count. Workspaces have different values, so that their
  // kernels share queues less often. Requests are ordered only if the same block posts them on the same
  // context.
  uint32_t first_queue;
  const SymmAliases* aliases;  // aliases of registered memory, or null
  // Counters, traces and faults of calls. Null, unless the application sets it in the copy that it passes to
  // a kernel.
  SymmProbes* probes;
};

// State of a workspace for each block.
struct SymmBlocks {
  // [count], in memory that only this rank uses: for each block, the number of the last LowLatency call that
  // it has finished. Kept in memory, so that each launch of a CUDA graph continues where the previous launch
  // ended.
  uint64_t* epochs;
  // In the heap: [count][kSymmTurns][team_size] slots of slot_bytes each. Block b of member r writes to slot
  // [b][t][r] of the other members.
  char* slots;
  uint64_t slot_bytes;  // a multiple of kSymmSlotUnit; 0: no slots
  uint64_t count;       // number of blocks, at most kSymmMaxBlocks
};

// A workspace: a context with its own signals, barriers and failure word, for one stream or purpose. Kernels
// that run at the same time, each with its own workspace, do not interfere. A pointer to a workspace may be
// used as a pointer to its context, which is the first member.
template <typename Context = SymmContext>
struct SymmWorkspace {
  Context context;
  SymmBlocks blocks;
};

}  // namespace verbena

#endif
