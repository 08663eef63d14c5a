// Defines a block's ncclShmem for kernels that NCCL does not launch. ncclShmem has the members through which
// NCCL's primitives and ncclNetDeviceUnpack exchange data. Their names and order are NCCL's. The kernel must
// set ncclShmem to zero and sync the block. Then one thread writes srcs[] and the mask, and calls
// ncclNetDeviceUnpackSetup.
#ifndef VERBENA_NCCL_COMMON_H
#define VERBENA_NCCL_COMMON_H

#include "device.h"

#include "network/unpack/unpack_defs.h"
#include "verbena/device/platform.cuh"

struct ncclShmemGroup {
  void* recvConns[NCCL_MAX_ARITY];
  void* sendConns[NCCL_MAX_ARITY];
  void* userInput;
  void* userOutput;
  void* srcs[NCCL_MAX_ARITY + 1];
  void* dsts[NCCL_MAX_ARITY + 1];
  union {
    unpackGroupShmem unpack;
  } devicePlugin;
  int32_t dstSizes[NCCL_MAX_ARITY + 1];
};
struct ncclShmemData {
  int channelId;
  int aborted;
  ncclShmemGroup groups[NCCL_MAX_GROUPS];
  alignas(16) union {
    unpackShmem unpack;
  } devicePlugin;
};

#if VERBENA_EMULATED
#include "verbena/device/emulation.h"
inline ncclShmemData& verbenaFindNcclShmem() {
  static const char key = 0;
  return *static_cast<ncclShmemData*>(
      verbena::device::emulation::shared_memory(&key, sizeof(ncclShmemData), alignof(ncclShmemData)));
}
#define ncclShmem (verbenaFindNcclShmem())
#else
VERBENA_SHARED ncclShmemData ncclShmem;
#endif

#endif
