// Stands in for NCCL's header of this name where NCCL's sources are not at hand: the types that the
// surrounding kernel must find, and nothing else.
#pragma once
#include <device.h>  // the surrounding kernel's

struct loadMeta {
  uint32_t src_off, len;
  uint64_t dst_off;
};
struct netUnpackMeta {
  loadMeta mem[16][2048];
  uint64_t cnt[16];
};
struct unpackNetDeviceHandle {
  netUnpackMeta* meta;
  void* bounce_buf;
  uint64_t head;
};
struct unpackShmem {
  void* bounce_buf;
};
struct unpackGroupShmem {
  int unpackNetDeviceIndexMask;
  uint64_t head[2];
  netUnpackMeta* g_meta[2];
};
