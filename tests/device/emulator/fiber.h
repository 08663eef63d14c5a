// One emulated thread: its place in its grid, its stack, and what it is doing, for the report of a hang.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "context.h"
#include "synchronization.h"
#include "verbena/device/emulation.h"

namespace verbena::emulator {

struct Block;

inline constexpr uint32_t kHostGpu = ~0u;  // of a host function
inline constexpr int64_t kNoDetail = -1;

// What a fiber runs on, kept for the next world's fibers.
struct Runner {
  explicit Runner(size_t stack_bytes) : stack(stack_bytes), context(stack) {}
  Stack stack;
  Context context;
};

struct Fiber {
  device::emulation::Index index;
  Place place;   // for scopes
  Block* block;  // null for a host function
  const std::function<void()>* body;
  std::unique_ptr<Runner> runner;
  FenceState fences;

  enum class State { kReady, kWaiting, kSleeping, kDone } state = State::kReady;
  bool is_slow = false;         // some schedules let it run rarely
  const char* doing = "";       // a literal: its last operation
  const void* where = nullptr;  // the address of that operation
  int64_t detail = kNoDetail;   // a barrier's number, a mask of lanes
  uint64_t wake_ns = 0;
  Fiber* next_waiting = nullptr;
  uint32_t shuffle_source = 0;  // the lane it asked for
  uint32_t warp_result = 0;     // of its last warp operation
};

// Threads that wait for one another: at a block's barrier, or lanes of a warp in one operation. Nothing here
// allocates: see IgnoreScope.
struct Gathering {
  Fiber* last_waiting = nullptr;  // a list through Fiber::next_waiting
  int arrived = 0;
  int expected = 0;
  // What the sanitizer orders by, one a generation: a late leaver must not see the next generation's
  // arrivals.
  static constexpr uint64_t kClocks = 4;
  uint64_t generation = 0;
  std::array<uint64_t, kClocks> clocks{};

  const void* clock(uint64_t of_generation) const { return &clocks[of_generation % kClocks]; }
};

struct WarpGathering {
  Gathering gathering;
  const char* operation = nullptr;  // a literal; null: free
  uint32_t lanes = 0;
  std::array<uint32_t, device::kWarpLanes> values{};
};

struct Warp {
  std::array<WarpGathering, device::kWarpLanes> gatherings;  // each that is in use has different lanes
};

struct SharedPiece {
  const void* key;
  size_t length_bytes;
  char* mapped;  // with guards around `start`
  char* start;
};

struct Cluster;

// A launch. One behind it may begin when each of its blocks has let it, or has ended.
struct Grid {
  Grid* earlier = nullptr;
  uint32_t threads_left = 0;    // that have not ended
  uint32_t blocks_holding = 0;  // that have not let the next grid begin
  // Of the next grid: lists through Fiber::next_waiting.
  Fiber* waiting_for_begin = nullptr;
  Fiber* waiting_for_end = nullptr;
  uint64_t clock = 0;  // its end: what the sanitizer orders by
};

struct Block {
  Grid* grid;
  bool is_holding = true;
  uint32_t threads_left;
  uint32_t gpu;
  uint32_t number;
  uint32_t threads;
  static constexpr int kBarriers = 16;
  std::array<Gathering, kBarriers> barriers;
  std::vector<Warp> warps;
  std::vector<SharedPiece> shared;
  std::shared_ptr<Cluster> cluster;
};

// Blocks that reach each other's shared memory.
struct Cluster {
  std::vector<Block*> blocks;
  Gathering barrier;
};

}  // namespace verbena::emulator
