// Describes a team of ranks with symmetric memory to kernels: structures that the host fills and copies to
// GPU memory, and that kernels only read. Symmetric: kernels name memory of any rank by this rank's address
// of the same offset.
//
// A rank's heap is one range of GPU addresses. Every window lies in it, at the same offset on all ranks. The
// heaps of the peers that loads and stores reach (over NVLink or the same GPU: the LSA domain) are mapped
// contiguously, so that one delta for each peer leads from an address of this rank to the peer's.
#ifndef VERBENA_SYMM_ABI_H
#define VERBENA_SYMM_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

#include "verbena/put_abi.h"

namespace verbena {

// SymmContext::type: which backend reaches members beyond loads and stores, and which context derives from
// it.
inline constexpr int32_t kSymmNccl = 0;
inline constexpr int32_t kSymmNvshmem = 1;
inline constexpr int32_t kSymmNcclx = 2;
inline constexpr int32_t kSymmVerbena = 3;
inline constexpr int32_t kSymmFirstOther = 64;  // from here on: backends of applications

inline constexpr uint32_t kSymmSignals = 256;  // of a team, for users
// Of a team, of each kind: three for each multiprocessor of the largest GPU. Their words are no signals.
inline constexpr uint32_t kSymmBarriers = 512;
// Rows of words for barriers: those of the ranks in reach, followed by those of whole teams.
inline constexpr uint32_t kSymmBarrierRows = 2 * kSymmBarriers;
// Blocks of a workspace, each with a barrier: more than any GPU has multiprocessors.
inline constexpr uint32_t kSymmMaxBlocks = kSymmBarriers;
inline constexpr uint32_t kSymmTurns = 4;       // slots between two members, used in turn
inline constexpr uint32_t kSymmSlotUnit = 128;  // bytes: a slot's address and length are multiples of it
inline constexpr int32_t kSymmInlineDeltas = 8;
inline constexpr int64_t kSymmOutOfReach = INT64_MIN;

// The result of a call that may wait or fail; int32 in the extern "C" functions.
enum class SymmStatus : int32_t {
  kDone = 0,
  kTimedOut = -1,     // after SymmContext::timeout_ns, or another wait of the team did: SymmContext::failure
  kAborted = -2,      // SymmContext::abort_word is set
  kInvalid = -3,      // no such rank, signal or barrier, or an address that is not symmetric
  kUnreachable = -4,  // neither loads and stores nor a NIC reach the peer
  kNetworkFailed = -5,  // a peer, or the network to it, failed: the host has the reason
  kRefused = -6,        // the proxy refused an operation, such as for an address outside every window
};

// Values of SymmContext::abort_word. The first value that is set stays; it ends the context, on this rank.
enum class SymmAbort : uint32_t {
  kNone = 0,
  kByUser = 1,  // kAborted; so is any value that is not named here
  kNetworkFailed = 2,
  kRefused = 3,
};

// SymmContext::failure describes the first wait of a team that timed out, or the first invalid call, on any
// member. Bits 0 to 7: the kind; from bit 8: the number of the barrier or signal; from bit 24: the member
// that was waited for, or whose call it was; from bit 44: the member that waited. 0: no failure.
enum class SymmWait : uint8_t {
  kBarrier = 1,     // of the whole team
  kLsaBarrier = 2,  // of the ranks that loads and stores reach
  kSignal = 3,      // for a signal of any member
  kRequest = 4,     // for a free entry of a put queue, or for the data of a get
  kCompletion = 5,  // symm_quiet, symm_flush, or the first half of a barrier
  kPacket = 6,      // for a packet of low_latency.cuh; the number is the block's
  kWord = 7,        // for a word of a window
  kCall = 8,        // no wait: the member's arguments are invalid, or differ from its peers'
};
inline constexpr uint32_t kSymmFailureNumber = 8, kSymmFailurePeer = 24, kSymmFailureRank = 44;  // bits
inline constexpr uint32_t kSymmFailureNumberBits = 16, kSymmFailureRankBits = 20;
inline constexpr uint32_t kSymmNobody =
    (uint32_t{1} << kSymmFailureRankBits) - 1;  // a wait for no one member

// Comparisons, of signed integers.
enum class SymmCompare : int32_t { kEqual = 1, kNotEqual, kGreater, kGreaterEqual, kLess, kLessEqual };
enum class SymmSignalOperation : int32_t { kSet = 0, kAdd = 1, kIncrement = 2 };  // the last adds 1

// Registered memory of the application: its own addresses, and the delta to the window's symmetric ones. The
// host changes the table while kernels run: an entry is valid while its end is not 0.
struct SymmAlias {
  uint64_t begin, end;
  uint64_t delta;  // added to an address in between
};
inline constexpr uint32_t kSymmMaxAliases = 256;
struct SymmAliases {
  uint64_t count;  // of entries that may be valid, from the first on
  SymmAlias entries[kSymmMaxAliases];
};

namespace device {
struct TraceRing;
}

// Faults that a test injects by SymmProbes::faults. Compiled in only with VERBENA_DEVICE_FAULTS. Except for
// the first, each happens once, to the first call that meets it, which clears its bit.
enum class SymmFault : uint64_t {
  kDelayPuts = 1,   // about a microsecond passes between the data of a put and what follows it
  kDropSignal = 2,  // a signal is not sent, but its sender gets kDone
  kLateWait = 4,    // a wait ends as if it had timed out
  kForceAbort = 8,  // a wait ends as if the context had been aborted
};

// Counters of kernels that are compiled with VERBENA_DEVICE_PROBES, for SymmContext::probes. In memory that
// the GPU and the reader reach; zero at first. A group's call counts once.
struct alignas(16) SymmProbes {
  uint64_t puts, put_bytes;
  uint64_t gets, get_bytes;
  uint64_t signals;          // sent
  uint64_t updates;          // of words in windows (symm_word.cuh)
  uint64_t waits, wait_ns;   // for signals, words, barriers and completion; a barrier's second half
  uint64_t late_waits;       // that timed out
  uint64_t faults;           // a set of SymmFault; the host writes it
  device::TraceRing* trace;  // may be null
  uint64_t reserved;         // 0
};

// One team on one rank. All pointers are valid on this rank's GPU. Pass it to kernels by value, as a
// __grid_constant__, to have it in constant memory: a kernel reads a context in global memory again after
// each acquire, which takes a quarter of a microsecond each time.
// Contexts of other backends derive from it: their members begin directly after it, aligned to 16 bytes.
struct SymmContext {
  int32_t type;
  int32_t rank, world_size;  // in the world
  int32_t team_size, team_rank;
  int32_t lsa_size;       // ranks of the team that loads and stores reach, this one included
  int32_t lsa_base_rank;  // the first of these, by its rank in the team
  int32_t has_remote;     // 1: the team has other ranks too, whose signals NICs bring
  uint64_t lsa_mask;      // bit r: loads and stores reach rank r of the team; teams of at most 64 ranks
  // Bytes from an address of this rank to the peer's; kSymmOutOfReach if there is none. Here for teams of at
  // most kSymmInlineDeltas ranks, at the pointer for larger ones.
  int64_t inline_deltas[kSymmInlineDeltas];
  const int64_t* more_deltas;     // [team_size], or null
  uint64_t heap_begin, heap_end;  // this rank's own
  uint64_t multicast_delta;       // bytes to the multicast address of all ranks in reach; 0: none
  // In the heap, at the same offset on all ranks. A signal is the sum of its two words, as GPUs and NICs do
  // not see each other's atomics: ranks in reach change the first, NICs the second.
  uint64_t* signals;         // [kSymmSignals]
  uint64_t* remote_signals;  // [kSymmSignals]
  uint64_t* arrivals;  // [kSymmBarrierRows][team_size]: the round that rank r has reached, written by it
  // In memory of this rank alone.
  uint64_t* rounds;  // [kSymmBarrierRows]: the round that this rank has reached
  // In the heap. A value other than 0 ends every wait of the team here: see SymmWait. Null: not reported.
  uint64_t* failure;
  uint64_t timeout_ns;
  const uint32_t* abort_word;  // a SymmAbort: a value other than 0 ends every wait; null: none
  // The queues to ranks beyond loads and stores, the same for all teams of a rank. No queues: kUnreachable.
  PutQueueView queues;
  // The rank in the world of each member, as descriptors name it: here or at the pointer, as the deltas.
  int32_t inline_world_ranks[kSymmInlineDeltas];
  const int32_t* more_world_ranks;  // [team_size], or null
  // 1: a GPU sees in order what NICs write to its own memory, but not what they write to other GPUs'. Ranks
  // in reach of each other then wait for each other once more in a barrier of the whole team.
  uint32_t meets_twice;
  // Block b uses put queue (first_queue + b) modulo their number. Kernels whose contexts differ in it, such
  // as those of workspaces, share queues less often; a block's order is that of one context's calls.
  uint32_t first_queue;
  const SymmAliases* aliases;  // of registered memory; null: none
  // Counters, traces and faults of calls. NULL unless the caller of a kernel sets it in its copy.
  SymmProbes* probes;
};

// The private data of a workspace's blocks.
struct SymmBlocks {
  // [count], of this rank alone: the last call of low_latency.cuh that the block has finished. In memory, so
  // that a kernel in a CUDA graph continues where the launch before it ended.
  uint64_t* epochs;
  // In the heap: [count][kSymmTurns][team_size] slots of slot_bytes each. Slot [b][t][r] of a rank is written
  // by block b of member r.
  char* slots;
  uint64_t slot_bytes;  // a multiple of kSymmSlotUnit; 0: there are none
  uint64_t count;       // of blocks, at most kSymmMaxBlocks
};

// A workspace of one stream or purpose: a team's context with separate signals, barriers and failure word, so
// that kernels of the team that run at the same time, each with its own workspace, do not interfere. It
// begins with the context: its address serves wherever a context's does.
template <typename Context = SymmContext>
struct SymmWorkspace {
  Context context;
  SymmBlocks blocks;
};

}  // namespace verbena

#endif
