#include "world.h"

#include "launch_order.h"
#include "report.h"
#include "scheduler.h"
#include "shared_memory.h"

namespace verbena::emulator {

World::World(uint64_t seed) : World(seed, Limits()) {}

World::World(uint64_t seed, const Limits& limits) : seed_(seed), limits_(limits) {}

World::~World() {
  for (const auto& block : blocks_) release_shared_memory(*block);
}

Grid* World::add_grid(uint32_t gpu, uint32_t blocks, uint32_t threads_per_block, std::function<void()> kernel,
                      uint32_t blocks_per_cluster, Grid* earlier) {
  bodies_.push_back(std::make_unique<std::function<void()>>([kernel = std::move(kernel)] {
    begin_thread();
    kernel();
    end_thread();
  }));
  grids_.push_back(std::make_unique<Grid>());
  Grid* const grid = grids_.back().get();
  grid->earlier = earlier;
  grid->blocks_holding = blocks;
  grid->threads_left = blocks * threads_per_block;
  const uint32_t warps = (threads_per_block + device::kWarpLanes - 1) / device::kWarpLanes;
  std::shared_ptr<Cluster> cluster;
  for (uint32_t number = 0; number < blocks; ++number) {
    const auto block_number = static_cast<uint32_t>(blocks_.size());
    if (number % blocks_per_cluster == 0) cluster = std::make_shared<Cluster>();
    auto block = std::make_unique<Block>();
    block->grid = grid;
    block->threads_left = threads_per_block;
    block->cluster = cluster;
    cluster->blocks.push_back(block.get());
    block->gpu = gpu;
    block->number = number;
    block->threads = threads_per_block;
    block->warps.resize(warps);
    for (uint32_t thread = 0; thread < threads_per_block; ++thread) {
      auto fiber = std::make_unique<Fiber>();
      fiber->index = {thread, number, threads_per_block, blocks, blocks_per_cluster};
      fiber->place = {static_cast<uint32_t>(fibers_.size()), block_number,
                      block_number - number % blocks_per_cluster, gpu};
      fiber->block = block.get();
      fiber->body = bodies_.back().get();
      fibers_.push_back(std::move(fiber));
    }
    blocks_.push_back(std::move(block));
  }
  return grid;
}

void World::add_host(std::function<void()> body) {
  bodies_.push_back(std::make_unique<std::function<void()>>(std::move(body)));
  auto fiber = std::make_unique<Fiber>();
  fiber->index = {hosts_++, 0, 1, 1, 1};
  // A host function is in no block but its own.
  const auto number = static_cast<uint32_t>(fibers_.size());
  fiber->place = {number, ~number, ~number, kHostGpu};
  fiber->block = nullptr;
  fiber->body = bodies_.back().get();
  fibers_.push_back(std::move(fiber));
}

void World::add_multicast(uint64_t begin, size_t length_bytes, const std::vector<void*>& places) {
  MulticastRange range{begin, length_bytes, {}};
  for (void* place : places) range.places.push_back(static_cast<char*>(place));
  multicasts_.push_back(std::move(range));
}

std::string World::run() {
  Scheduler scheduler(seed_, limits_.stalled_steps + 500 * fibers_.size(), limits_.steps,
                      limits_.outside_patience_s);
  scheduler.set_multicasts(multicasts_);
  std::string failure = scheduler.run(fibers_);
  steps_ = scheduler.steps();
  for (const auto& block : blocks_) {
    if (failure.empty()) failure = check_shared_memory_guards(*block);
  }
  if (failure.empty()) return failure;
  return "seed " + std::to_string(seed_) + ", step " + std::to_string(steps_) + ": " + failure;
}

void yield() {
  Scheduler::active()->step("yields");
}

void wait_until_step(uint64_t step) {
  Scheduler::active()->wait_until_step(step);
}

void fail(const std::string& text) {
  Scheduler* scheduler = Scheduler::active();
  scheduler->fail(describe_place(scheduler->running()) + ": " + text);
}

uint32_t current_gpu() {
  return Scheduler::active()->running().place.gpu;
}

}  // namespace verbena::emulator
