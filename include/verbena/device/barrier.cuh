// Reusable barriers between the blocks of a grid, and between the GPUs (ranks) of a system. Everything that
// any thread did before a barrier is visible to every thread after the barrier, at the barrier's scope. The
// barriers count rounds in 64-bit words that are never reset, so a late thread cannot mistake one round for
// another.
//
// Every call returns within its limits (WaitLimits). After a result other than kReached, the counts may be
// inconsistent. Before the barrier is used again, the host must set the words of all ranks to zero, while no
// kernel runs. All blocks that take part must be resident at the same time, so use a cooperative launch, or
// no more blocks than fit on the GPU.
#ifndef VERBENA_DEVICE_BARRIER_CUH
#define VERBENA_DEVICE_BARRIER_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/group.cuh"
#include "verbena/device/wait.cuh"

namespace verbena::device {

// A barrier between `count_blocks` blocks of one GPU. The number must be the same in each use. `arrived`
// points to a dedicated word in global memory, which must be 0 before its first use and must keep its value
// between kernels.
struct GridBarrier {
  uint64_t* arrived;
  uint32_t count_blocks;

  // Arrives at the barrier. One thread of each block makes the call. If the work of other threads must be
  // visible, the block must sync before the call. The call is a release at GPU scope.
  // @return the value of `arrived` once the last block has arrived
  VERBENA_DEVICE uint64_t arrive() const {
    const uint64_t before = fetch_add<Order::kRelease, Scope::kGpu>(arrived, 1);
    return (before / count_blocks + 1) * count_blocks;
  }

  template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck>
  [[nodiscard]] VERBENA_DEVICE WaitResult wait(uint64_t reached, const WaitLimits& limits) const {
    return wait_until<Relation::kGreaterEqual, Scope::kGpu, BackOff, kSpinsPerCheck>(arrived, reached,
                                                                                     limits);
  }

  // Arrives and waits. All threads of the group make the call.
  template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
            typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE WaitResult sync(const WaitLimits& limits, const Group& group = {}) const {
    group.sync();
    WaitResult mine = WaitResult::kReached;
    if (group.elect()) mine = wait<BackOff, kSpinsPerCheck>(arrive(), limits);
    return agree(group, mine);
  }
};

// A barrier between `count_ranks` GPUs or processes, with one group of threads on each. Each rank has
// `count_ranks` words, into which the ranks write (one word per rank), and a word that counts the rank's own
// rounds. All words must be 0 before the first use.
struct SystemBarrier {
  uint64_t* const* arrivals;  // [count_ranks] addresses of each rank's words; rank r writes word r
  uint64_t* rounds;           // this rank's round
  uint32_t rank;
  uint32_t count_ranks;

  // Arrives at the barrier. All threads of the group make the call, after a group barrier. The call is a
  // release at system scope.
  // @return the new round, for wait()
  template <typename Group>
  VERBENA_DEVICE uint64_t arrive(const Group& group) const {
    const uint64_t round = load_relaxed<Scope::kGpu>(rounds) + 1;
    for (uint32_t peer = group.rank(); peer < count_ranks; peer += group.size())
      store_release<Scope::kSystem>(arrivals[peer] + rank, round);
    return round;
  }

  // Waits for all ranks. All threads of the group make the call, once for each arrive().
  template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
            typename Group>
  [[nodiscard]] VERBENA_DEVICE WaitResult wait(const Group& group, uint64_t round,
                                               const WaitLimits& limits) const {
    WaitResult mine = WaitResult::kReached;
    for (uint32_t peer = group.rank(); peer < count_ranks && mine == WaitResult::kReached;
         peer += group.size())
      mine = wait_until<Relation::kGreaterEqual, Scope::kSystem, BackOff, kSpinsPerCheck>(
          arrivals[rank] + peer, round, limits);
    const WaitResult all = agree(group, mine);
    if (group.elect()) store_relaxed<Scope::kGpu>(rounds, round);
    return all;
  }

  template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
            typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE WaitResult sync(const WaitLimits& limits, const Group& group = {}) const {
    group.sync();
    return wait<BackOff, kSpinsPerCheck>(group, arrive(group), limits);
  }
};

// A barrier of all blocks of all ranks, which consists of a grid barrier, a system barrier for block 0 of
// each rank, and another grid barrier.
template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck>
[[nodiscard]] VERBENA_DEVICE WaitResult sync_all_ranks(const GridBarrier& grid, const SystemBarrier& system,
                                                       const WaitLimits& limits) {
  WaitResult result = grid.sync<BackOff, kSpinsPerCheck>(limits);
  if (result == WaitResult::kReached && block_index() == 0)
    result = system.sync<BackOff, kSpinsPerCheck>(limits);
  if (result != WaitResult::kReached) return result;  // the waits of the other blocks end by their own limits
  return grid.sync<BackOff, kSpinsPerCheck>(limits);
}

// All threads of a grid as a group (group.cuh), for any function that takes a group, such as symm_barrier()
// or symm_put_async(). Blocks must consist of whole warps. The GridBarrier must not be used for anything
// else. If a sync() times out or is aborted, is_broken() and any() return true from then on, so that no later
// wait is reported as successful. The host must then set the words to zero, as for the barriers above.
struct GridGroup {
  static constexpr uint32_t kWords = 4;

  GridBarrier barrier;
  uint64_t* words;  // [kWords], in global memory, 0 before their first use
  WaitLimits limits;
  mutable WaitResult result = WaitResult::kReached;

  VERBENA_DEVICE uint32_t rank() const { return block_index() * threads_per_block() + thread_index(); }
  VERBENA_DEVICE uint32_t size() const { return blocks_per_grid() * threads_per_block(); }
  VERBENA_DEVICE bool elect() const { return rank() == 0; }
  VERBENA_DEVICE bool is_broken() const { return result != WaitResult::kReached; }
  VERBENA_DEVICE void sync() const { static_cast<void>(any(false)); }

  // Consecutive rounds use three words round robin. While some threads vote in the word of this round, other
  // threads may still read the word of the previous round. Block 0 clears the word of the next round, which
  // all threads have already read.
  VERBENA_DEVICE bool any(bool vote) const {
    if (is_broken()) return true;
    const BlockGroup block;
    const bool is_vote = block.any(vote);
    bool is_yes = false;
    WaitResult mine = WaitResult::kReached;
    if (block.elect()) {
      // This block has not arrived yet, so the count still belongs to this round.
      const uint64_t round = load_relaxed<Scope::kGpu>(barrier.arrived) / barrier.count_blocks;
      if (block_index() == 0) store_relaxed<Scope::kGpu>(words + (round + 1) % 3, 0);
      if (is_vote) store_relaxed<Scope::kGpu>(words + round % 3, 1);
      mine = barrier.wait(barrier.arrive(), limits);
      is_yes = mine != WaitResult::kReached || load_relaxed<Scope::kGpu>(words + round % 3) != 0;
    }
    result = agree(block, mine);
    return block.any(is_yes);
  }

  VERBENA_DEVICE uint64_t share(uint64_t value, bool is_giver) const {
    if (is_giver) store_relaxed<Scope::kGpu>(words + 3, value);
    sync();
    const uint64_t shared = load_relaxed<Scope::kGpu>(words + 3);
    sync();
    return shared;
  }
};

}  // namespace verbena::device

#endif
