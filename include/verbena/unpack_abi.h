// Memory layout of NCCL's UNPACK device handle (version 7). The handle refers to descriptors, by which the
// GPU copies a received message from bounce pages to the message's destination. The plugin, NCCL's kernels,
// verbena/device/unpack.cuh and the CPU reference implementation use this layout. This header is valid in
// C++11 and later, on host and device.
//
// Each receive communicator has one UnpackDeviceHandle and one NetUnpackMeta. All communicators of a GPU
// share one bounce region. A receive uses slot (H0 + 1 + k) % 16. H0 is the initial head of the handle, and k
// counts the communicator's receives of the Simple protocol in posting order. With H0 = 2^64 - 1, the slot is
// k % 16.
//
//   plugin: writes mem[slot][0..n), then cnt[slot] = n (release), then reports the receive as done
//   GPU:    reads cnt[slot] once, copies  bounce + src_off -> data + dst_off,  len bytes, for each descriptor
//   plugin: in irecvConsumed writes cnt[slot] = 0 and recycles the pages
//
// At every other time cnt[slot] must be 0, because a stale count makes NCCL's kernels loop forever after an
// abort.
#ifndef VERBENA_UNPACK_ABI_H
#define VERBENA_UNPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

namespace verbena {

constexpr int kUnpackQueueDepthSlots = 16;        // max receives from irecv to irecvConsumed; NCCL uses <= 8
constexpr int kUnpackMaxDescriptors = 2048;       // per slot; the plugin must check this limit, because the
                                                  // GPU does not
constexpr size_t kUnpackMaxSliceBytes = 4194304;  // 4 MiB, the size of the largest staged receive
constexpr size_t kUnpackPageBytes = 4096;         // NCCL's page size; descriptors may have any length
constexpr size_t kUnpackBounceAlignmentBytes =
    16;  // alignment of bounce_buf; the GPU checks the alignment of offsets only
constexpr uint64_t kUnpackFreshHead = ~uint64_t(0);  // value of H0 for which the first receive uses slot 0

// Describes one part of a message. The plugin writes the descriptor; the GPU reads it by a single 16-byte
// load. Offsets and length are in bytes; a length of 0 is allowed. The parts of a slot are copied in parallel
// and must not overlap at the destination.
struct alignas(16) LoadMeta {
  uint32_t src_off;  // from bounce_buf; a bounce region spans at most 4 GiB
  uint32_t len;
  uint64_t dst_off;  // from the `data` pointer of the irecv
};
static_assert(sizeof(LoadMeta) == 16 && alignof(LoadMeta) == 16, "NCCL's descriptor");
static_assert(offsetof(LoadMeta, len) == 4 && offsetof(LoadMeta, dst_off) == 8, "NCCL's descriptor");

// The descriptors of all slots, in pinned host memory that is mapped into the GPU. The plugin owns this
// memory and frees it in closeRecv.
struct NetUnpackMeta {
  LoadMeta mem[kUnpackQueueDepthSlots][kUnpackMaxDescriptors];
  uint64_t cnt[kUnpackQueueDepthSlots];  // number of valid descriptors of each slot
};
static_assert(sizeof(NetUnpackMeta) == 524416 && offsetof(NetUnpackMeta, cnt) == 524288,
              "NCCL's unpack queue");

// The device handle, in the receiving GPU's memory. The plugin owns and frees the handle, and writes it once,
// before accept returns the communicator. Afterwards only the GPU accesses the handle. A kernel loads the
// three members at the start of a primitive, and stores `head` at the end.
struct UnpackDeviceHandle {
  NetUnpackMeta* meta;  // address valid on the GPU
  void* bounce_buf;     // address valid on the GPU; the same for all receive communicators of one GPU
  uint64_t head;        // incremented before each use of a slot
};
static_assert(sizeof(UnpackDeviceHandle) == 24, "NCCL's device handle");
static_assert(offsetof(UnpackDeviceHandle, bounce_buf) == 8 && offsetof(UnpackDeviceHandle, head) == 16, "");

}  // namespace verbena

#endif
