// The state of a kernel that receives messages by UNPACK (unpack_abi.h), in shared memory. The state contains
// the block's channel, the receive queues of each group and peer, whether the block was aborted, and the
// addresses of the error word and the trace ring. A block declares one KernelState in static or dynamic
// shared memory. All threads of the block call start_kernel() first, and finish_kernel() at the end.
//
// start_kernel() writes all fields. Afterwards, only the thread with rank 0 of a group writes the heads of
// the group's queues, and any thread may set `aborted` to 1.
#ifndef VERBENA_DEVICE_KERNEL_STATE_CUH
#define VERBENA_DEVICE_KERNEL_STATE_CUH

#include "verbena/device/group.cuh"
#include "verbena/device/trace.cuh"
#include "verbena/device/unpack.cuh"

namespace verbena::device {

enum class ErrorCode : uint8_t { kNone, kBadCount, kBadIndex, kAborted, kTimedOut };

// The first error of a launch, in memory that the host can also read. The word is 0 if there is no error.
struct alignas(8) ErrorWord {
  uint64_t bits;  // code in bits 0-7, group 8-15, peer 16-23, slot 24-31, block 32-63

  VERBENA_HOST_DEVICE static constexpr uint64_t pack(ErrorCode code, uint32_t group, uint32_t peer,
                                                     uint32_t slot, uint32_t block) {
    return static_cast<uint64_t>(code) | uint64_t{group & 0xff} << 8 | uint64_t{peer & 0xff} << 16 |
           uint64_t{slot & 0xff} << 24 | uint64_t{block} << 32;
  }
  VERBENA_HOST_DEVICE static constexpr ErrorCode get_code(uint64_t bits) {
    return static_cast<ErrorCode>(bits & 0xff);
  }
};

// Faults that a test injects through KernelArguments::faults, in kernels compiled with VERBENA_DEVICE_FAULTS.
// Other kernels ignore KernelArguments::faults.
enum class Fault : uint64_t {
  kDelayPlacing = 1,  // a group pauses for about 1 us before it unpacks a message
  kForceAbort = 2,    // the next receive behaves as if the abort word were set
  kCorruptCount = 4,  // the count of a message is replaced by an invalid count
};

// The arguments of a launch. The host writes them once, to memory that the GPU can read. The size is a
// multiple of 16 bytes.
struct alignas(16) KernelArguments {
  static constexpr int kMaskWords = 4;
  uint64_t channel_mask[kMaskWords];           // block b uses the channel of the b-th set bit
  UnpackDeviceHandle* const* receive_handles;  // [channels][groups][peers]; an entry is null if there is no
                                               // queue
  const uint32_t* abort_word;                  // the host writes 1 to end all waits; may be NULL
  ErrorWord* error;                            // may be NULL
  TraceRing* trace;                            // may be NULL
  uint32_t groups, peers;                      // dimensions of receive_handles, at most the dimensions of the
                                               // KernelState
  uint64_t timeout_ns;                         // timeout of each wait
  uint64_t faults;                             // bits of Fault
};
static_assert(sizeof(KernelArguments) % 16 == 0, "copied in units of 16 bytes");

// A receive queue of a group. As in NCCL, a receive first increments `head`, and then uses slot `head % 16`.
struct alignas(16) ReceiveQueue {
  UnpackDeviceHandle* handle;  // null if there is no queue
  const NetUnpackMeta* meta;
  const char* bounce;
  uint64_t head;
};

template <int kGroupCount = 4, int kPeerCount = 4, int kBatch = 64>
struct alignas(16) KernelState {
  static_assert(kGroupCount >= 1 && kGroupCount <= 15,
                "verbena: kGroupCount must be 1 to 15, one hardware barrier per group");
  static constexpr uint32_t kGroups = kGroupCount;
  static constexpr uint32_t kPeers = kPeerCount;
  static constexpr int kBatchDescriptors = kBatch;

  KernelArguments arguments;
  uint32_t channel;
  uint32_t aborted;
  ReceiveQueue queues[kGroupCount][kPeerCount];
  UnpackScratch<kBatch> scratch[kGroupCount];

  VERBENA_DEVICE WaitLimits make_limits() const {
    return WaitLimits::within(arguments.timeout_ns, arguments.abort_word);
  }
  VERBENA_DEVICE bool is_aborted() const { return load_relaxed<Scope::kBlock>(&aborted) != 0; }
  VERBENA_DEVICE void mark_aborted() { store_relaxed<Scope::kBlock>(&aborted, 1); }

  VERBENA_DEVICE bool has_fault(Fault fault) const {
    return kHasFaults && (arguments.faults & static_cast<uint64_t>(fault)) != 0;
  }

  // Reports an error to the host. The host gets only the first error of a launch. Any thread may call this
  // function.
  VERBENA_DEVICE void report(ErrorCode code, uint32_t group, uint32_t peer, uint32_t slot) {
    if (arguments.error != nullptr) {
      const uint64_t bits = ErrorWord::pack(code, group, peer, slot, block_index());
      compare_exchange<Order::kRelaxed, Scope::kSystem>(&arguments.error->bits, 0, bits);
    }
    trace(arguments.trace, code == ErrorCode::kAborted ? TraceEvent::kAborted : TraceEvent::kError, group,
          peer, slot);
  }
};
static_assert(sizeof(KernelState<>) <= 8192, "must leave room for other static shared memory");

namespace detail {

VERBENA_HOST_DEVICE constexpr uint32_t find_lowest_bit(uint64_t bits) {
  return static_cast<uint32_t>(__builtin_popcountll((bits & (~bits + 1)) - 1));
}

// Returns the channel of a block: the set bits of the mask are numbered from the lowest bit on, and the
// channel is the position of set bit number `block`. Returns ~0 if there is no such bit.
VERBENA_DEVICE uint32_t find_channel(const uint64_t (&mask)[KernelArguments::kMaskWords], uint32_t block) {
  for (uint32_t word = 0; word < KernelArguments::kMaskWords; ++word) {
    uint64_t bits = mask[word];
    const auto here = static_cast<uint32_t>(__builtin_popcountll(bits));
    if (block >= here) {
      block -= here;
      continue;
    }
    for (; block > 0; --block) bits &= bits - 1;
    return word * 64 + find_lowest_bit(bits);
  }
  return ~0u;
}

}  // namespace detail

// Reads the arguments of the launch and the handles of this block's channel. All threads of the block must
// call this function before they use the state. The function ends with a barrier of the block.
// @return false if the block has no channel
template <typename State>
VERBENA_DEVICE bool start_kernel(State& state, const KernelArguments* arguments) {
  const BlockGroup block;
  const auto* const from = reinterpret_cast<const Vector16*>(arguments);
  auto* const to = reinterpret_cast<Vector16*>(&state.arguments);
  for (uint32_t i = block.rank(); i < sizeof(KernelArguments) / sizeof(Vector16); i += block.size())
    to[i] = from[i];
  // The thread belongs to the second warp, if there is one, so that its loads overlap with the loads of the
  // first warp.
  if (block.rank() == (block.size() > kWarpLanes ? kWarpLanes : 0)) {
    state.channel = detail::find_channel(arguments->channel_mask, block_index());
    state.aborted = 0;
  }
  block.sync();
  if (state.channel == ~0u) return false;
  const KernelArguments& told = state.arguments;
  for (uint32_t i = block.rank(); i < State::kGroups * State::kPeers; i += block.size()) {
    const uint32_t group = i / State::kPeers, peer = i % State::kPeers;
    ReceiveQueue queue{};
    if (group < told.groups && peer < told.peers && told.receive_handles != nullptr)
      queue.handle = told.receive_handles[(state.channel * told.groups + group) * told.peers + peer];
    if (queue.handle != nullptr) {
      queue.meta = queue.handle->meta;
      queue.bounce = static_cast<const char*>(queue.handle->bounce_buf);
      queue.head = queue.handle->head;
    }
    state.queues[group][peer] = queue;
  }
  block.sync();
  if (block.rank() == 0) trace(told.trace, TraceEvent::kKernelStart, 0, state.channel);
  return true;
}

// Writes the heads of the receive queues back to the handles, for the next launch. All threads of the block
// must call this function last.
template <typename State>
VERBENA_DEVICE void finish_kernel(State& state) {
  const BlockGroup block;
  block.sync();
  for (uint32_t i = block.rank(); i < State::kGroups * State::kPeers; i += block.size()) {
    const ReceiveQueue& queue = state.queues[i / State::kPeers][i % State::kPeers];
    if (queue.handle != nullptr) queue.handle->head = queue.head;
  }
  if (block.rank() == 0) trace(state.arguments.trace, TraceEvent::kKernelEnd, 0, state.is_aborted() ? 1 : 0);
}

}  // namespace verbena::device

#endif
