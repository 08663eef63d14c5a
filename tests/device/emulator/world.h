// Several GPUs and a host as one program of the test: kernels' threads and host functions run one at a time,
// on the calling thread, and change places at every operation of the device library
// (verbena/device/emulation.h).
//
//   World world(seed);                                // 0: all in turn; others: schedules drawn from the
//   seed world.add_grid(0, 2, 64, [&] { kernel(arguments); }); world.add_host([&] { fill_slots(); }); // a
//   NIC, a proxy: C++'s atomics or emulation::store EXPECT_EQ(world.run(), "");
//
// Real threads beside it, such as a proxy's: Limits::outside_patience_s. What a seed gives is then not the
// same each time.
//
// All blocks are resident. Wrong use fails the run: a misaligned access, threads that do not meet at a
// barrier, a run in which nothing changes any more. Expectations inside a kernel would order its threads for
// ThreadSanitizer: use require().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace verbena::emulator {

struct Fiber;
struct Block;
struct Grid;
struct MulticastRange;

class World {
 public:
  struct Limits {
    uint64_t stalled_steps = 200'000;  // without a store, a barrier or an end: a livelock
    uint64_t steps = 400'000'000;
    // Threads beside the world's read and write its memory too: time is the machine's, and without a change
    // it waits that long.
    uint32_t outside_patience_s = 0;
  };

  explicit World(uint64_t seed = 0);
  World(uint64_t seed, const Limits& limits);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // `blocks` is a multiple of blocks_per_cluster. Behind an `earlier` grid by programmatic dependent launch.
  Grid* add_grid(uint32_t gpu, uint32_t blocks, uint32_t threads_per_block, std::function<void()> kernel,
                 uint32_t blocks_per_cluster = 1, Grid* earlier = nullptr);
  void add_host(std::function<void()> body);
  // `begin` and what follows is never accessed itself: it stands for each place of `places`, in their order.
  void add_multicast(uint64_t begin, size_t length_bytes, const std::vector<void*>& places);

  // Once. Returns "" or what went wrong.
  [[nodiscard]] std::string run();
  uint64_t steps() const { return steps_; }

 private:
  const uint64_t seed_;
  const Limits limits_;
  std::vector<std::unique_ptr<std::function<void()>>> bodies_;
  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<MulticastRange> multicasts_;
  uint32_t hosts_ = 0;
  uint64_t steps_ = 0;
};

// For code that runs in a world.

// Lets other threads run; host functions call it between C++ operations.
void yield();
// Returns when the world has done so many operations, or when nothing else is left.
void wait_until_step(uint64_t step);
// Ends the run with this text.
[[noreturn]] void fail(const std::string& text);
inline void require(bool condition, const char* text) {
  if (!condition) fail(text);
}
// Fails the test unless `status`, the result of a function of the device library, is kDone.
template <typename Status>
void require_done(Status status, const char* text) {
  if (status != Status::kDone)
    fail(std::string(text) + ": status " + std::to_string(static_cast<int>(status)));
}
uint32_t current_gpu();

}  // namespace verbena::emulator
