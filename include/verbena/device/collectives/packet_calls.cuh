// PacketCalls is the base class of OneShot (one_shot.cuh) and TwoShot (two_shot.cuh). PacketCalls has the
// state of a block that sends and receives packets (low_latency.cuh).
#ifndef VERBENA_DEVICE_COLLECTIVES_PACKET_CALLS_CUH
#define VERBENA_DEVICE_COLLECTIVES_PACKET_CALLS_CUH

#include "verbena/device/collectives/exchange_plan.cuh"

namespace verbena::device {

// @tparam Shots  the class that derives from PacketCalls, and has all_reduce_bytes()
template <typename Context, typename Shots>
class PacketCalls {
 public:
  using Exchange = LowLatency<Context>;

  // All threads of the calling group must construct the object.
  // @param workspace  has at least `blocks` blocks; must outlive this object
  // @param block  index of this block, below `blocks`
  VERBENA_DEVICE PacketCalls(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks,
                             const GridStart& start = {})
      : exchange_(workspace, block),
        context_(workspace.context),
        start_(start),
        block_(block),
        blocks_(blocks) {
    status_ = block >= blocks || blocks > workspace.blocks.count ? SymmStatus::kInvalid : exchange_.check();
  }

  // Writes the sum of all ranks' `input` to `output`. When the call returns, the threads of the group may
  // read this block's part of the output, and change this block's part of the input.
  // @param input  memory of this GPU
  // @param output  memory of this GPU; either `input` itself, or memory that does not overlap `input`.
  //                Neither tensor needs alignment
  // @param count  number of elements of T: float, Half, Bfloat16, E4m3 or int32_t
  // @tparam kRanks  size of the team, at most 16, if known at compile time; otherwise 0
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    return static_cast<Shots*>(this)->template all_reduce_bytes<kRanks>(
        reinterpret_cast<const char*>(input), reinterpret_cast<char*>(output), count * sizeof(T),
        ReduceAs<T>{}, group);
  }

  // Ends this block's calls. Call it once in a kernel, after the last collective.
  // @return the first error of the calls, or kDone
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_) status_ = exchange_.finish(group);
    return status_;
  }

  VERBENA_DEVICE uint64_t capacity_bytes() const { return exchange_.capacity_bytes(); }

 protected:
  // Waits for the earlier kernels of the stream, unless this block has already waited for them.
  VERBENA_DEVICE bool start() {
    if (!has_started_ && status_ == SymmStatus::kDone) {
      start_();
      has_started_ = true;
    }
    return status_ == SymmStatus::kDone;
  }
  // Begins the next `calls` calls of the exchange. Call this function before each message. Do not call it
  // after a message, because another message may not follow. `ahead` has the same meaning as in
  // LowLatency::turn().
  template <typename Group>
  VERBENA_DEVICE bool begin_message(const Group& group, uint32_t calls = 1, uint32_t ahead = 0) {
    if (has_begun_) {
      status_ = exchange_.turn(group, Heard::kEverybody, calls, ahead);
    } else {
      exchange_.load_epoch(calls);
    }
    has_begun_ = true;
    return status_ == SymmStatus::kDone;
  }
  // Does the same as begin_message(), but returns false in all threads if the team has failed. So callers
  // need not check exchange_.trouble().
  template <typename Group>
  VERBENA_DEVICE bool begin_in_step(const Group& group, uint32_t calls = 1) {
    const bool is_first = !has_begun_;
    if (begin_message(group, calls) && is_first) status_ = exchange_.conclude(group, exchange_.trouble());
    return status_ == SymmStatus::kDone;
  }

  Exchange exchange_;
  const Context& context_;
  GridStart start_;
  uint32_t block_, blocks_;
  bool has_started_ = false, has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
