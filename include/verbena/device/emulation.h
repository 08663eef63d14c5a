// Declares the functions that the device library calls when it is compiled as ordinary C++. The functions
// return the calling thread's position in the grid, wait in barriers, and access memory that other threads or
// a NIC may access at the same time. These functions have the semantics of PTX. An emulator must define these
// functions. tests/device/emulator is such an emulator; tests link it to run a grid. Any thread of an
// emulated grid may call any of these functions.
#ifndef VERBENA_DEVICE_EMULATION_H
#define VERBENA_DEVICE_EMULATION_H

#include "verbena/device/platform.cuh"

namespace verbena::device {

namespace emulation {

struct Index {
  uint32_t thread, block;  // one-dimensional indices of the calling thread and its block
  uint32_t threads_per_block, blocks_per_grid, blocks_per_cluster;
};

const Index& index();

// Barriers. All threads for which a barrier waits must make the call. count_threads is a multiple of 32.
void sync_block();
void sync_named(int barrier, int count_threads);
void sync_cluster();
void sync_warp(uint32_t lanes);
// Programmatic dependent launch: wait and trigger (griddepcontrol). Any thread may call these functions.
void wait_for_earlier_grids();
void let_next_grid_start();
uint32_t shuffle(uint32_t lanes, uint32_t value, int source_lane);
uint32_t ballot(uint32_t lanes, bool vote);

// Memory accesses. length_bytes is 1, 2, 4, 8 or 16, and the address is aligned to length_bytes; otherwise
// the test fails. An access of up to 8 bytes is single-copy atomic. A 16-byte access consists of two 8-byte
// accesses with the same order.
void load(void* value, const void* address, size_t length_bytes, Order order, Scope scope);
void store(void* address, const void* value, size_t length_bytes, Order order, Scope scope);
// Updates a word atomically. Returns the previous value, zero-extended. length_bytes is 4 or 8. Only
// kCompareExchange uses `compare`.
uint64_t update(void* address, Operation operation, uint64_t operand, uint64_t compare, size_t length_bytes,
                Order order, Scope scope);
void fence(Order order, Scope scope);

// Finds the memory that belongs to a multicast address. Writes the address of each GPU's memory to `places`,
// in the order of the multicast group. `most` is the capacity of `places`. Returns the number of GPUs. If the
// address is not a multicast address, the test fails.
size_t find_multicast(const void* address, size_t length_bytes, void** places, size_t most);

// Returns a time in nanoseconds that never decreases. Each call of clock_ns() and pause() lets other threads
// run.
uint64_t clock_ns();
void pause(uint32_t nanoseconds);

// Returns the address of shared memory of the block. All threads of a block that pass the same `key` get the
// same address. The memory is initially filled with 0xa5.
void* shared_memory(const void* key, size_t length_bytes, size_t alignment_bytes);
// Returns the address of the same variable in the shared memory of another block of the cluster.
void* find_in_cluster(const void* address, uint32_t block);

}  // namespace emulation
}  // namespace verbena::device

#endif
