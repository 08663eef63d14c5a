// What a kernel knows of a team of ranks with symmetric memory: structures that the host fills and copies
// into the GPU's memory, and that kernels only read. Symmetric: an address is given as this rank's, and means
// the same place at every other rank.
//
// A rank's heap is one range of its GPU's addresses; every window lies in it, at the same offset on all
// ranks. The heaps of the peers that loads and stores reach (over NVLink or the same GPU: the LSA domain) are
// mapped contiguously, so that one number a peer leads from an address of ours to his.
#ifndef VERBENA_SYMM_ABI_H
#define VERBENA_SYMM_ABI_H

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stdint.h>
#endif

#include "verbena/put_abi.h"

namespace verbena {

// SymmContext::type: whose way leads to members out of reach, and which context derives from it.
inline constexpr int32_t kSymmNccl = 0;
inline constexpr int32_t kSymmNvshmem = 1;
inline constexpr int32_t kSymmNcclx = 2;
inline constexpr int32_t kSymmVerbena = 3;
inline constexpr int32_t kSymmFirstOther = 64;  // from here on: backends that are not ours

inline constexpr uint32_t kSymmSignals = 256;  // of a team, for users
// Of a team, of each kind: three for each multiprocessor of the largest GPU. Their words are no signals.
inline constexpr uint32_t kSymmBarriers = 512;
// Rows of words for barriers: those of the ranks in reach, behind them those of whole teams.
inline constexpr uint32_t kSymmBarrierRows = 2 * kSymmBarriers;
// Blocks of a workspace, each with a barrier of its own: more than any GPU has multiprocessors.
inline constexpr uint32_t kSymmMaxBlocks = kSymmBarriers;
inline constexpr uint32_t kSymmTurns = 4;       // slots between two members, used in turn
inline constexpr uint32_t kSymmSlotUnit = 128;  // bytes: a slot's address and length are multiples of it
inline constexpr int32_t kSymmInlineDeltas = 8;
inline constexpr int64_t kSymmOutOfReach = INT64_MIN;

// What a call that may wait or fail returns; also as int32 from the extern "C" functions.
enum class SymmStatus : int32_t {
  kDone = 0,
  kTimedOut = -1,       // SymmContext::timeout_ns, or another wait of the team did: SymmContext::failure
  kAborted = -2,        // SymmContext::abort_word
  kInvalid = -3,        // no such rank, signal, barrier, or no symmetric address
  kUnreachable = -4,    // neither loads and stores nor a NIC lead there
  kNetworkFailed = -5,  // a peer, or the way to it, has failed: the host knows the cause
  kRefused = -6,        // what was asked of the proxy cannot be, such as an offset in no window
};

// What SymmContext::abort_word may say. The first value stays; it ends the context, on this rank.
enum class SymmAbort : uint32_t {
  kNone = 0,
  kByUser = 1,  // kAborted; so is any value that is not named here
  kNetworkFailed = 2,
  kRefused = 3,
};

// What SymmContext::failure says of the first wait of a team that ended by time, or of the first call that
// could not be carried out, at whatever member: the kind in bits 0 to 7, the number of its barrier or signal
// from bit 8, the member that it waited for, or whose call it was, from bit 24, the member that waited from
// bit 44. 0: none has.
enum class SymmWait : uint8_t {
  kBarrier = 1,     // of the whole team
  kLsaBarrier = 2,  // of the ranks in reach
  kSignal = 3,      // for whoever signals
  kRequest = 4,     // for a place in a put queue, or for what a get brings
  kCompletion = 5,  // symm_quiet, symm_flush, or a barrier's first half
  kPacket = 6,      // for a packet of low_latency.cuh; the number is the block's
  kWord = 7,        // for a word of a window
  kCall = 8,        // none: the member's call has arguments that cannot be, or that its peers do not have
};
inline constexpr uint32_t kSymmFailureNumber = 8, kSymmFailurePeer = 24, kSymmFailureRank = 44;  // bits
inline constexpr uint32_t kSymmFailureNumberBits = 16, kSymmFailureRankBits = 20;
inline constexpr uint32_t kSymmNobody =
    (uint32_t{1} << kSymmFailureRankBits) - 1;  // a wait for no one member

// Compared as signed integers. Numbered as the seed's users know them.
enum class SymmCompare : int32_t { kEqual = 1, kNotEqual, kGreater, kGreaterEqual, kLess, kLessEqual };
enum class SymmSignalOperation : int32_t { kSet = 0, kAdd = 1, kIncrement = 2 };  // the last adds 1

// Memory of the application's that is registered: its own addresses, and what leads to the window's, which
// are symmetric. The host changes the table while kernels run: an entry counts while its end is not 0.
struct SymmAlias {
  uint64_t begin, end;
  uint64_t delta;  // added to an address in between
};
inline constexpr uint32_t kSymmMaxAliases = 256;
struct SymmAliases {
  uint64_t count;  // entries from the first on that may count
  SymmAlias entries[kSymmMaxAliases];
};

namespace device {
struct TraceRing;
}

// Faults that a test asks for, in SymmProbes::faults. Compiled in only with VERBENA_DEVICE_FAULTS. But for
// the first one, each happens once to whoever meets it first, and its bit is cleared.
enum class SymmFault : uint64_t {
  kDelayPuts = 1,   // about a microsecond passes between a put's data and what comes behind it
  kDropSignal = 2,  // a signal is not sent, and its sender is told that it is
  kLateWait = 4,    // a wait ends as if its time were over
  kForceAbort = 8,  // a wait ends as if the context had been aborted
};

// What kernels that are compiled with VERBENA_DEVICE_PROBES count, for SymmContext::probes. In memory that
// the GPU and whoever looks reach; zero at first. Each group's call counts once.
struct alignas(16) SymmProbes {
  uint64_t puts, put_bytes;
  uint64_t gets, get_bytes;
  uint64_t signals;          // sent
  uint64_t updates;          // of words of one's own
  uint64_t waits, wait_ns;   // for signals, words, barriers and completion; a barrier's second half
  uint64_t late_waits;       // that ended by time
  uint64_t faults;           // a set of SymmFault; the host writes it
  device::TraceRing* trace;  // may be null
  uint64_t reserved;         // 0
};

// Of one team, on one rank. Everything it points to is in memory that this rank's GPU addresses. A kernel
// that takes it by value, as a __grid_constant__, has it in constant memory: what it reads of one in global
// memory it reads anew after each acquire, a quarter of a microsecond a time.
// Other backends' contexts derive from it: their members begin directly behind it, at a multiple of 16 bytes.
struct SymmContext {
  int32_t type;
  int32_t rank, world_size;  // in the world
  int32_t team_size, team_rank;
  int32_t lsa_size;       // ranks of the team in reach, this one among them
  int32_t lsa_base_rank;  // the first of them, by its rank in the team
  int32_t has_remote;     // some are not: signals come from NICs too
  uint64_t lsa_mask;      // bit r: rank r of the team is in reach; teams of at most 64 ranks
  // From an address of ours to the peer's, in bytes; kSymmOutOfReach. Teams of at most kSymmInlineDeltas
  // ranks have them here, others behind the pointer.
  int64_t inline_deltas[kSymmInlineDeltas];
  const int64_t* more_deltas;     // [team_size], or null
  uint64_t heap_begin, heap_end;  // this rank's own
  uint64_t multicast_delta;       // from an address of ours to that of all ranks in reach at once; 0: none
  // In the heap, hence at the same place on all ranks. A signal is the sum of its two words: one that ranks
  // in reach set and add to, one that NICs do, as neither sees the other's atomics.
  uint64_t* signals;         // [kSymmSignals]
  uint64_t* remote_signals;  // [kSymmSignals]
  uint64_t* arrivals;        // [kSymmBarrierRows][team_size]: round that rank r has come to, written by it
  // This rank's own, in its memory alone.
  uint64_t* rounds;  // [kSymmBarrierRows]: that it has come to itself
  // In the heap. Anything but 0 ends every wait of the team here: see SymmWait. Null: nobody is told.
  uint64_t* failure;
  uint64_t timeout_ns;
  const uint32_t* abort_word;  // a SymmAbort: anything but 0 ends every wait; null: none
  // The way to ranks out of reach; the same for all teams of a rank. No queues: kUnreachable.
  PutQueueView queues;
  // Of each member in the world, as descriptors name it: here or behind the pointer, like the deltas.
  int32_t inline_world_ranks[kSymmInlineDeltas];
  const int32_t* more_world_ranks;  // [team_size], or null
  // 1: GPUs see in order what NICs write to their own memory, and not what they write to others'. Ranks in
  // reach of each other then meet once more in a whole team's barrier.
  uint32_t meets_twice;
  // Block b asks for RDMA by put queue (first_queue + b) modulo their number. Kernels whose contexts differ
  // in it, such as workspaces', are less in each other's way; a block's order is that of one context's calls.
  uint32_t first_queue;
  const SymmAliases* aliases;  // of registered memory; null: there is none
  // Null unless whoever launches a kernel puts one into its copy of the context.
  SymmProbes* probes;
};

// What each block of a workspace has for itself.
struct SymmBlocks {
  // This rank's own, [count]: the last call of low_latency.cuh that the block has ended. In memory, so that a
  // kernel in a CUDA graph goes on where the launch before it ended.
  uint64_t* epochs;
  // In the heap: [count][kSymmTurns][team_size] slots of slot_bytes each. Slot [b][t][r] of a rank is written
  // by block b of member r.
  char* slots;
  uint64_t slot_bytes;  // a multiple of kSymmSlotUnit; 0: there are none
  uint64_t count;       // of blocks, at most kSymmMaxBlocks
};

// Of one stream or one purpose: a team's context whose signals, barriers and failure word are the
// workspace's own, so that kernels of the team that run at the same time, each with a workspace, cannot
// meet by accident. It begins with the context: its address serves wherever a context's does.
template <typename Context = SymmContext>
struct SymmWorkspace {
  Context context;
  SymmBlocks blocks;
};

}  // namespace verbena

#endif
