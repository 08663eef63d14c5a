// ncclNetDeviceUnpack and related functions with NCCL's own signatures, for kernels that were written for
// NCCL's header of the same name. ncclShmem comes from "common.h", which may be NCCL's file, the
// application's file, or the file in verbena/nccl_device. verbena/device/nccl_unpack.cuh describes the
// functions and the order in which a kernel calls them.
//
// Differences from NCCL: the functions use no barriers and no scratch memory per warp. If a queue was not set
// up, or if a count exceeds the capacity of a slot, nothing is unpacked.
#ifndef VERBENA_NCCL_UNPACK_H
#define VERBENA_NCCL_UNPACK_H

#include <common.h>
#include <device.h>
#include "unpack_defs.h"
#include "verbena/device/unpack.cuh"

namespace verbena::device::detail {

// NCCL's worker threads as a group (group.cuh). The group has no sync(), because unpack_by_warps() does not
// need it.
struct NcclWorkers {
  uint32_t thread, count_threads;

  VERBENA_DEVICE uint32_t rank() const { return thread; }
  VERBENA_DEVICE uint32_t size() const { return count_threads; }
};

}  // namespace verbena::device::detail

VERBENA_DEVICE bool ncclNetDeviceHasQueue(const int group, const int index) {
  return group >= 0 && index >= 0 && index < NET_UNPACK_MAX_NPEERS &&
         group < static_cast<int>(sizeof(ncclShmem.groups) / sizeof(ncclShmem.groups[0]));
}

VERBENA_DEVICE void ncclNetDeviceUnpackSetup(void* ohandle, const int group, const int index) {
  if (!ncclNetDeviceHasQueue(group, index)) return;
  const auto* const handle = static_cast<const unpackNetDeviceHandle*>(ohandle);
  ncclShmem.groups[group].devicePlugin.unpack.g_meta[index] = handle->meta;
  ncclShmem.groups[group].devicePlugin.unpack.head[index] = handle->head;
  ncclShmem.devicePlugin.unpack.bounce_buf = handle->bounce_buf;
}

VERBENA_DEVICE void ncclNetDeviceIncrementHead(const int group, const int index) {
  if (ncclNetDeviceHasQueue(group, index)) ncclShmem.groups[group].devicePlugin.unpack.head[index]++;
}

VERBENA_DEVICE void ncclNetDeviceSaveHead(void* ohandle, const int group, const int index) {
  if (ncclNetDeviceHasQueue(group, index))
    static_cast<unpackNetDeviceHandle*>(ohandle)->head =
        ncclShmem.groups[group].devicePlugin.unpack.head[index];
}

// Unpacks one message. `src` is the message's destination, and `step` is the head of its queue. The
// descriptors contain the lengths.
VERBENA_DEVICE void ncclNetDeviceUnpackInner(const int tid, const int, const int nworkers, const int group,
                                             const int index, void* src, const int, const uint64_t step) {
  if (!ncclNetDeviceHasQueue(group, index)) return;
  const auto& queue = ncclShmem.groups[group].devicePlugin.unpack;
  if (queue.g_meta[index] == nullptr) return;
  const verbena::device::detail::NcclWorkers workers{static_cast<uint32_t>(tid),
                                                     static_cast<uint32_t>(nworkers)};
  verbena::device::unpack_by_warps(workers,
                                   reinterpret_cast<const verbena::NetUnpackMeta*>(queue.g_meta[index]),
                                   static_cast<uint32_t>(step % NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH),
                                   ncclShmem.devicePlugin.unpack.bounce_buf, src);
}

// Unpacks the message of peer p to srcs[p + Src], for each set bit p of `mask`. Does nothing if Recv is 0,
// that is, for sends.
template <int Recv>
VERBENA_DEVICE void ncclNetDeviceUnpack(const int tid, const int tidInBlock, const int nworkers,
                                        const int group, int mask, int Src, int workSize) {
  if constexpr (Recv != 0) {
    for (; mask != 0; mask &= mask - 1) {
      const auto index = static_cast<int>(
          __builtin_popcount((static_cast<unsigned>(mask) & -static_cast<unsigned>(mask)) - 1));
      if (!ncclNetDeviceHasQueue(group, index)) continue;
      ncclNetDeviceUnpackInner(tid, tidInBlock, nworkers, group, index,
                               ncclShmem.groups[group].srcs[index + Src], workSize,
                               ncclShmem.groups[group].devicePlugin.unpack.head[index]);
    }
  }
}

#endif
