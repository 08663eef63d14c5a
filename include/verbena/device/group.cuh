// Groups of threads that call a function together: ThreadGroup, WarpGroup, WarpsGroup, BlockGroup,
// ClusterGroup, and GridGroup (barrier.cuh). All groups have the same member functions, so that functions
// such as waits and copies work with every group:
//   rank()                   returns the calling thread's index, 0 to size() - 1
//   size()                   returns the number of threads
//   sync()                   waits for all threads of the group; then each sees the writes of all others
//   any(vote)                syncs, and returns in all threads whether any thread voted true
//   elect()                  returns true in exactly one thread; every thread calls it, with converged warps
//   share(value, is_giver)   returns in all threads the 64-bit `value` of a thread whose `is_giver` is true
// Groups are cheap to construct and to copy. Groups that are in use at the same time must not share a thread
// or a hardware barrier.
#ifndef VERBENA_DEVICE_GROUP_CUH
#define VERBENA_DEVICE_GROUP_CUH

#include "verbena/device/machine.cuh"
#include "verbena/device/memory_order.cuh"

namespace verbena::device {

namespace detail {

// Returns the word of shared memory through which share() passes values. Each hardware barrier has one word.
// Only kernels that call this function use the shared memory.
VERBENA_DEVICE uint64_t* find_shared_word(int barrier) {
#if VERBENA_EMULATED
  static const char key = 0;
  auto* const words = static_cast<uint64_t*>(
      emulation::shared_memory(&key, kHardwareBarriers * sizeof(uint64_t), alignof(uint64_t)));
#else
  VERBENA_SHARED uint64_t words[kHardwareBarriers];
#endif
  return words + barrier;
}

// Syncs twice: once after the word is written, and once after all threads have read the word, so that the
// word may be written again.
template <typename Group>
VERBENA_DEVICE uint64_t share_by_word(const Group& group, uint64_t* word, uint64_t value, bool is_giver) {
  if (is_giver) store_relaxed<Scope::kBlock>(word, value);
  group.sync();
  const uint64_t shared = load_relaxed<Scope::kBlock>(word);
  group.sync();
  return shared;
}

}  // namespace detail

// A group that consists only of the calling thread.
struct ThreadGroup {
  VERBENA_DEVICE uint32_t rank() const { return 0; }
  VERBENA_DEVICE uint32_t size() const { return 1; }
  VERBENA_DEVICE void sync() const {}
  VERBENA_DEVICE bool any(bool vote) const { return vote; }
  VERBENA_DEVICE bool elect() const { return true; }
  VERBENA_DEVICE uint64_t share(uint64_t value, bool) const { return value; }
};

// The 32 lanes of the caller's warp.
struct WarpGroup {
  VERBENA_DEVICE uint32_t rank() const { return lane(); }
  VERBENA_DEVICE uint32_t size() const { return kWarpLanes; }
  VERBENA_DEVICE void sync() const { sync_warp(); }
  VERBENA_DEVICE bool any(bool vote) const {
    sync_warp();  // a ballot does not order memory accesses
    return ballot(kFullWarp, vote) != 0;
  }
  VERBENA_DEVICE bool elect() const { return elect_one(); }
  VERBENA_DEVICE uint64_t share(uint64_t value, bool is_giver) const {
    const uint32_t givers = ballot(kFullWarp, is_giver);
    const int lane = __builtin_popcount((givers & (~givers + 1)) - 1);  // the lowest
    const uint32_t low = shuffle(kFullWarp, static_cast<uint32_t>(value), lane);
    const uint32_t high = shuffle(kFullWarp, static_cast<uint32_t>(value >> 32), lane);
    return static_cast<uint64_t>(high) << 32 | low;
  }
};

// All threads of the caller's block; hardware barrier 0.
struct BlockGroup {
  VERBENA_DEVICE uint32_t rank() const { return thread_index(); }
  VERBENA_DEVICE uint32_t size() const { return threads_per_block(); }
  VERBENA_DEVICE void sync() const { sync_block(); }
  VERBENA_DEVICE bool any(bool vote) const { return sync_block_any(vote); }
  VERBENA_DEVICE bool elect() const { return thread_index() == 0; }
  VERBENA_DEVICE uint64_t share(uint64_t value, bool is_giver) const {
    return detail::share_by_word(*this, detail::find_shared_word(0), value, is_giver);
  }
};

// A group whose rank and size are kept in registers, so that they are computed only once.
template <typename Group>
struct KeptGroup : Group {
  VERBENA_DEVICE explicit KeptGroup(const Group& group)
      : Group(group), rank_(keep(group.rank())), size_(keep(group.size())) {}
  VERBENA_DEVICE uint32_t rank() const { return rank_; }
  VERBENA_DEVICE uint32_t size() const { return size_; }

 private:
  uint32_t rank_, size_;
};

namespace detail {

// Returns this block's two words of shared memory through which the blocks of a cluster pass values.
VERBENA_DEVICE uint64_t* find_cluster_words() {
#if VERBENA_EMULATED
  static const char key = 0;
  return static_cast<uint64_t*>(emulation::shared_memory(&key, 2 * sizeof(uint64_t), alignof(uint64_t)));
#else
  VERBENA_SHARED uint64_t words[2];
  return words;
#endif
}

}  // namespace detail

// All threads of the caller's cluster of blocks, which have whole warps and the same number of threads. In a
// kernel that is launched without clusters, the cluster is the block.
struct ClusterGroup {
  VERBENA_DEVICE uint32_t rank() const { return block_in_cluster() * threads_per_block() + thread_index(); }
  VERBENA_DEVICE uint32_t size() const { return blocks_per_cluster() * threads_per_block(); }
  VERBENA_DEVICE void sync() const {
    if (blocks_per_cluster() == 1) return sync_block();
    arrive_at_cluster();
    await_cluster();
  }
  VERBENA_DEVICE bool any(bool vote) const {
    if (blocks_per_cluster() == 1) return sync_block_any(vote);
    const bool is_any = find_voters(vote) != 0;
    // Then the words may be written again. No release is needed, because find_voters() has used what it has
    // loaded.
    arrive_at_cluster_relaxed();
    await_cluster();
    return is_any;
  }
  VERBENA_DEVICE bool elect() const { return rank() == 0; }
  VERBENA_DEVICE uint64_t share(uint64_t value, bool is_giver) const {
    if (blocks_per_cluster() == 1) return BlockGroup{}.share(value, is_giver);
    uint64_t* const word = detail::find_cluster_words() + 1;
    if (is_giver) store_relaxed<Scope::kCluster>(word, value);
    const uint32_t givers = find_voters(is_giver);
    const auto giver = static_cast<uint32_t>(__builtin_popcount((givers & (~givers + 1)) - 1));  // the lowest
    const uint64_t shared = load_relaxed<Scope::kCluster>(find_in_cluster(word, giver));
    sync();  // every thread has loaded the value
    return shared;
  }

 private:
  // Syncs, and returns a bit for each block that has a thread with a true vote. The threads of the cluster
  // must meet again before the next call.
  VERBENA_DEVICE uint32_t find_voters(bool vote) const {
    uint64_t* const word = detail::find_cluster_words();
    const bool is_vote = sync_block_any(vote);
    if (thread_index() == 0) store_relaxed<Scope::kCluster>(word, uint64_t{is_vote});
    sync();
    const bool is_voter =
        lane() < blocks_per_cluster() && load_relaxed<Scope::kCluster>(find_in_cluster(word, lane())) != 0;
    return ballot(kFullWarp, is_voter);
  }
};

// Consecutive whole warps of a block, with a dedicated hardware barrier.
struct WarpsGroup {
  uint32_t first_thread;   // a multiple of 32
  uint32_t count_threads;  // a multiple of 32
  int barrier;             // 1 to 15

  VERBENA_DEVICE uint32_t rank() const { return thread_index() - first_thread; }
  VERBENA_DEVICE uint32_t size() const { return count_threads; }
  VERBENA_DEVICE void sync() const { sync_named(barrier, static_cast<int>(count_threads)); }
  VERBENA_DEVICE bool any(bool vote) const {
    return sync_named_any(barrier, static_cast<int>(count_threads), vote);
  }
  VERBENA_DEVICE bool elect() const { return thread_index() == first_thread; }
  VERBENA_DEVICE uint64_t share(uint64_t value, bool is_giver) const {
    return detail::share_by_word(*this, detail::find_shared_word(barrier), value, is_giver);
  }
};

}  // namespace verbena::device

#endif
