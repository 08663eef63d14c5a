// The functions that the device library needs when it is compiled as ordinary C++: the calling thread's
// position in the grid, its barriers, and every access to memory that other threads, or a NIC, may access at
// the same time. The library only declares them; an emulator defines them (tests/device/emulator is one: a
// test links it and runs a grid). They have the semantics of PTX. Any thread of an emulated grid may call any
// of them.
#ifndef VERBENA_DEVICE_EMULATION_H
#define VERBENA_DEVICE_EMULATION_H

#include "verbena/device/platform.cuh"

namespace verbena::device {

namespace emulation {

struct Index {
  uint32_t thread, block;  // of the caller; one-dimensional
  uint32_t threads_per_block, blocks_per_grid, blocks_per_cluster;
};

const Index& index();

// Barriers: every thread named must call. `count` is in threads, a multiple of 32.
void sync_block();
void sync_named(int barrier, int count_threads);
void sync_cluster();
void sync_warp(uint32_t lanes);
// Programmatic dependent launch: griddepcontrol's wait and trigger, by any thread.
void wait_for_earlier_grids();
void let_next_grid_start();
uint32_t shuffle(uint32_t lanes, uint32_t value, int source_lane);
uint32_t ballot(uint32_t lanes, bool vote);

// Accesses. length_bytes is 1, 2, 4, 8 or 16, and the address is aligned to it; anything else fails the test.
// An access of up to 8 bytes is single-copy atomic; one of 16 is two of 8 with one order.
void load(void* value, const void* address, size_t length_bytes, Order order, Scope scope);
void store(void* address, const void* value, size_t length_bytes, Order order, Scope scope);
// Returns the value before, zero-extended; length_bytes is 4 or 8. `compare` is for kCompareExchange.
uint64_t update(void* address, Operation operation, uint64_t operand, uint64_t compare, size_t length_bytes,
                Order order, Scope scope);
void fence(Order order, Scope scope);

// Writes where each GPU of a multicast group has the `length_bytes` at a multicast address, in the order of
// the group, to `places`, which has space for `most`, and returns how many there are. An address that is not
// multicast fails the test.
size_t find_multicast(const void* address, size_t length_bytes, void** places, size_t most);

// Returns nanoseconds that never decrease; each call, and each pause, lets other threads run.
uint64_t clock_ns();
void pause(uint32_t nanoseconds);

// Returns a block's shared memory: the same address for all threads of a block and one `key`, filled with
// 0xa5 at first.
void* shared_memory(const void* key, size_t length_bytes, size_t alignment_bytes);
// Returns the address in another block of the cluster of what is at this address of shared memory.
void* find_in_cluster(const void* address, uint32_t block);

}  // namespace emulation
}  // namespace verbena::device

#endif
