#include "launch_order.h"

#include "sanitizer.h"
#include "scheduler.h"
#include "verbena/device/emulation.h"

namespace verbena::emulator {
namespace {

void await(Fiber*& list) {
  Fiber& self = Scheduler::active()->running();
  self.next_waiting = list;
  list = &self;
  Scheduler::active()->wait();
}

void wake_all(Fiber*& list) {
  Scheduler::active()->note_progress();
  for (Fiber* waiting = list; waiting != nullptr; waiting = waiting->next_waiting)
    Scheduler::active()->wake(*waiting);
  list = nullptr;
}

void release_next(Block& block) {
  if (!block.is_holding) return;
  block.is_holding = false;
  if (--block.grid->blocks_holding == 0) wake_all(block.grid->waiting_for_begin);
}

}  // namespace

void begin_thread() {
  Grid* const earlier = Scheduler::active()->running().block->grid->earlier;
  if (earlier == nullptr || earlier->blocks_holding == 0) return;
  Scheduler::active()->count_step("is to be launched", nullptr, kNoDetail);
  await(earlier->waiting_for_begin);
}

void end_thread() {
  Block& block = *Scheduler::active()->running().block;
  Grid& grid = *block.grid;
  release_clock(&grid.clock);
  if (--block.threads_left == 0) release_next(block);
  if (--grid.threads_left == 0) wake_all(grid.waiting_for_end);
}

}  // namespace verbena::emulator

namespace verbena::device::emulation {

void wait_for_earlier_grids() {
  const emulator::Block* const block = emulator::Scheduler::active()->running().block;
  if (block == nullptr || block->grid->earlier == nullptr) return;
  emulator::Grid& earlier = *block->grid->earlier;
  if (earlier.threads_left != 0) {
    emulator::Scheduler::active()->count_step("waits for the grid before", nullptr, emulator::kNoDetail);
    emulator::await(earlier.waiting_for_end);
  }
  emulator::acquire_clock(&earlier.clock);
}

void let_next_grid_start() {
  emulator::Block* const block = emulator::Scheduler::active()->running().block;
  if (block != nullptr) emulator::release_next(*block);
}

}  // namespace verbena::device::emulation
