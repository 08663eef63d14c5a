// Stands in for NCCL's header of this name: every thing of the surrounding kernel that NCCL's uses is used
// once, and messages are placed byte by byte.
#pragma once
#include <common.h>

#include "unpack_defs.h"

static_assert(ncclShmemScratchWarpSize() >= 64 && WARP_SIZE == 32 && DIVUP(5, 2) == 3, "");

inline __device__ void ncclNetDeviceUnpackSetup(void* opaque, const int group, const int index) {
  const auto* handle = static_cast<const unpackNetDeviceHandle*>(opaque);
  ncclShmem.groups[group].devicePlugin.unpack.g_meta[index] = handle->meta;
  ncclShmem.groups[group].devicePlugin.unpack.head[index] = handle->head;
  ncclShmem.devicePlugin.unpack.bounce_buf = handle->bounce_buf;
}

inline __device__ void ncclNetDeviceIncrementHead(const int group, const int index) {
  ncclShmem.groups[group].devicePlugin.unpack.head[index] += 1;
}

template <int kReceive>
inline __device__ void ncclNetDeviceUnpack(const int thread, const int thread_in_block, const int workers,
                                           const int group, int mask, int source, int) {
  static_assert(kReceive == 1, "");
  const int index = __ffs(mask) - 1;
  const auto& queue = ncclShmem.groups[group].devicePlugin.unpack;
  const netUnpackMeta& meta = *queue.g_meta[index];
  const uint64_t slot = queue.head[index] % 16;
  auto* const bounce = static_cast<const char*>(ncclShmem.devicePlugin.unpack.bounce_buf);
  auto* const data = static_cast<char*>(ncclShmem.groups[group].srcs[index + source]);
  auto* const scratch = static_cast<loadMeta*>(ncclScratchForWarp(thread_in_block / WARP_SIZE));
  for (uint64_t page = 0; page < meta.cnt[slot]; ++page) {
    if (thread % WARP_SIZE == 0) *scratch = meta.mem[slot][page];
    __syncwarp();
    NVCC_PRAGMA_UNROLL_AUTO
    for (uint32_t byte = thread; byte < scratch->len; byte += workers)
      data[scratch->dst_off + byte] = bounce[scratch->src_off + byte];
    __syncwarp();
  }
}
