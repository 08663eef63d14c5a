// A kernel of the same shape as ours around NCCL's own ncclNetDeviceUnpack; compile-nccl-kernel compiles it
// with NCCL's sources. It defines what NCCL's header uses of NCCL's shared memory and helpers; "device.h" and
// "common.h", which define them in NCCL, are empty files here.
#include <stdint.h>

#include "verbena-bench/unpack/unpack_run.h"

#define WARP_SIZE 32
#ifndef NVCC_PRAGMA_UNROLL_AUTO
#define NVCC_PRAGMA_UNROLL_AUTO _Pragma("unroll")
#endif
#include <bitops.h>
#ifndef DIVUP
#define DIVUP(x, y) (((x) + (y)-1) / (y))
#endif
#include <unpack_defs.h>

namespace shape {
constexpr int kGroups = 16;
constexpr int kPeers = 2;
constexpr int kMaxWarps = 20;
// The scratch memory that a warp has in NCCL for LL128. Unpacking uses more of it than NCCL asserts.
constexpr int kScratchBytesAWarp = 2048;

struct Group {
  void* srcs[kPeers + 1];
  union {
    unpackGroupShmem unpack;
  } devicePlugin;
};
struct Shared {
  Group groups[kGroups];
  union {
    unpackShmem unpack;
  } devicePlugin;
};
}  // namespace shape

__shared__ shape::Shared ncclShmem;
__shared__ __align__(16) char scratch_of_warps[shape::kMaxWarps * shape::kScratchBytesAWarp];
__device__ constexpr int ncclShmemScratchWarpSize() {
  return shape::kScratchBytesAWarp;
}
__device__ inline void* ncclScratchForWarp(int warp) {
  return scratch_of_warps + warp * shape::kScratchBytesAWarp;
}

#include <unpack.h>

// The same steps as NCCL's generic operation: advance the head, barrier, unpack, barrier.
extern "C" __global__ void __launch_bounds__(shape::kMaxWarps* WARP_SIZE)
    unpack_nccl(verbena::tools::unpack::UnpackRun run) {
  constexpr int kGroup = 0, kIndex = 0;
  const uint32_t connection = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  unpackNetDeviceHandle handle;
  handle.meta = static_cast<netUnpackMeta*>(run.meta) + connection;
  handle.bounce_buf = run.bounce;
  for (uint32_t pass = 0; pass < run.passes; ++pass) {
    for (uint32_t round = 0; round < run.rounds; ++round) {
      for (uint32_t slot = 0; slot < run.slots; ++slot) {
        if (thread == 0) {
          // One handle is used for all slots and rounds: only its head and base change.
          handle.head = static_cast<uint64_t>(slot) - 1;
          handle.bounce_buf = run.bounce + run.bounce_offset(connection, round);
          ncclNetDeviceUnpackSetup(&handle, kGroup, kIndex);
          ncclNetDeviceIncrementHead(kGroup, kIndex);
          ncclShmem.groups[kGroup].srcs[kIndex] =
              run.buffers + run.data_offset(run.message_index(connection, round, slot));
        }
        __syncthreads();
        ncclNetDeviceUnpack</*Recv=*/1>(thread, thread, static_cast<int>(blockDim.x), kGroup, 1 << kIndex, 0,
                                        static_cast<int>(run.slice_bytes));
        __syncthreads();
      }
    }
  }
}
