// Defines the types of NCCL's UNPACK device handle under NCCL's names (verbena/unpack_abi.h describes the
// layout), and the types of a kernel's state in shared memory.
#ifndef VERBENA_NCCL_UNPACK_DEFS_H
#define VERBENA_NCCL_UNPACK_DEFS_H

#include "verbena/unpack_abi.h"

#define NCCL_NET_DEVICE_UNPACK_VERSION 0x7
#ifndef NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH
#define NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH 16
#endif
#define NET_UNPACK_MAX_QUEUE_DEPTH 16
#define NET_UNPACK_MAX_SLICE_SIZE 4194304
#define SLICE_PAGE_SIZE 4096
#define NET_UNPACK_MAX_SLICE_PAGES (NET_UNPACK_MAX_SLICE_SIZE / SLICE_PAGE_SIZE * 2)
#define NET_UNPACK_MAX_GROUPS 16
#define NET_UNPACK_MAX_NPEERS 2
#define WARP_SHM_PAGE_CNT 4
#define WARP_SHM_SIZE (WARP_SHM_PAGE_CNT * sizeof(union loadMeta))

union alignas(16) loadMeta {
  uint64_t r64[2];
  struct {
    uint32_t src_off;
    uint32_t len;
    uint64_t dst_off;
  };
};
static_assert(sizeof(loadMeta) == sizeof(verbena::LoadMeta), "a descriptor");

struct netUnpackMeta {
  loadMeta mem[NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH][NET_UNPACK_MAX_SLICE_PAGES];
  uint64_t cnt[NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH];
};
static_assert(sizeof(netUnpackMeta) == sizeof(verbena::NetUnpackMeta) &&
                  offsetof(netUnpackMeta, cnt) == offsetof(verbena::NetUnpackMeta, cnt),
              "the queue");

struct unpackNetDeviceHandle {
  netUnpackMeta* meta;
  void* bounce_buf;
  uint64_t head;
};
static_assert(sizeof(unpackNetDeviceHandle) == sizeof(verbena::UnpackDeviceHandle), "the handle");

// The unpack state of a block.
struct unpackShmem {
  void* bounce_buf;
};
// The unpack state of a group of threads.
struct unpackGroupShmem {
  int unpackNetDeviceIndexMask;
  uint64_t head[NET_UNPACK_MAX_NPEERS];
  netUnpackMeta* g_meta[NET_UNPACK_MAX_NPEERS];
};
static_assert(sizeof(unpackGroupShmem) == 40, "must have the size of NCCL's structure");

#endif
