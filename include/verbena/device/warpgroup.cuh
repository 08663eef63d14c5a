// Instructions for warpgroups (sm_90a). A warpgroup consists of four warps that multiply matrices together.
// The instructions order matrix operations, and move registers between warps. All lanes of all four warps
// must make each call. On other GPUs, ptxas rejects the instructions. In the emulation, which has no matrix
// operations, each call only syncs the warp.
#ifndef VERBENA_DEVICE_WARPGROUP_CUH
#define VERBENA_DEVICE_WARPGROUP_CUH

#include "verbena/device/machine.cuh"

namespace verbena::device {

inline constexpr uint32_t kWarpgroupWarps = 4;

// Makes earlier writes to the operands' registers and shared memory visible to later matrix operations.
VERBENA_DEVICE void fence_warpgroup() {
#if VERBENA_EMULATED
  sync_warp();
#elif VERBENA_PTX
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Commits all earlier matrix operations as one group, for wait_warpgroup().
VERBENA_DEVICE void commit_warpgroup() {
#if VERBENA_EMULATED
  sync_warp();
#elif VERBENA_PTX
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending of the latest groups are in flight.
template <int kPending>
VERBENA_DEVICE void wait_warpgroup() {
  static_assert(kPending >= 0 && kPending <= 7, "verbena: kPending must be 0 to 7");
#if VERBENA_EMULATED
  sync_warp();
#elif VERBENA_PTX
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Set the number of registers per thread of the warp. take_registers() increases the number, and waits until
// other warps have released enough registers. give_registers() decreases the number.
template <uint32_t kRegisters>
VERBENA_DEVICE void take_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "verbena: kRegisters must be 24 to 256 and a multiple of 8");
#if VERBENA_EMULATED
  sync_warp();
#elif VERBENA_PTX
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <uint32_t kRegisters>
VERBENA_DEVICE void give_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "verbena: kRegisters must be 24 to 256 and a multiple of 8");
#if VERBENA_EMULATED
  sync_warp();
#elif VERBENA_PTX
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace verbena::device

#endif
