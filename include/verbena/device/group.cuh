// Threads that do something together, as types with one shape, so that a wait, a barrier or a copy is written
// once for all of them:
//   rank()     the caller's number, 0 to size() - 1
//   size()     how many threads there are
//   sync()     all come; what each did before is there for every other one after (block scope)
//   any(vote)  sync(), and whether any thread voted yes: the same answer for all
//   elect()    true in one thread; all come, the lanes of a warp together
// Groups are values, cheap to make and to copy. Two groups that are in use at the same time share no thread
// and no hardware barrier.
#ifndef VERBENA_DEVICE_GROUP_CUH
#define VERBENA_DEVICE_GROUP_CUH

#include "verbena/device/machine.cuh"

namespace verbena::device {

// The calling thread alone.
struct ThreadGroup {
  VERBENA_DEVICE uint32_t rank() const { return 0; }
  VERBENA_DEVICE uint32_t size() const { return 1; }
  VERBENA_DEVICE void sync() const {}
  VERBENA_DEVICE bool any(bool vote) const { return vote; }
  VERBENA_DEVICE bool elect() const { return true; }
};

// The 32 lanes of the caller's warp.
struct WarpGroup {
  VERBENA_DEVICE uint32_t rank() const { return lane(); }
  VERBENA_DEVICE uint32_t size() const { return kWarpLanes; }
  VERBENA_DEVICE void sync() const { sync_warp(); }
  VERBENA_DEVICE bool any(bool vote) const {
    sync_warp();  // a ballot orders no memory
    return ballot(kFullWarp, vote) != 0;
  }
  VERBENA_DEVICE bool elect() const { return elect_one(); }
};

// All threads of the caller's block; hardware barrier 0.
struct BlockGroup {
  VERBENA_DEVICE uint32_t rank() const { return thread_index(); }
  VERBENA_DEVICE uint32_t size() const { return threads_per_block(); }
  VERBENA_DEVICE void sync() const { sync_block(); }
  VERBENA_DEVICE bool any(bool vote) const { return sync_block_any(vote); }
  VERBENA_DEVICE bool elect() const { return thread_index() == 0; }
};

// Some whole warps of a block, one after the other, with a hardware barrier of their own.
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
};

}  // namespace verbena::device

#endif
