// What the GPU reads to place a received message: the memory of NCCL's UNPACK device handle (version 7).
// Shared by the plugin, by NCCL's kernels, by verbena/device/unpack.cuh and by the CPU reference. Layouts are
// NCCL's; C++11 and later, host and device.
//
// One receive communicator owns one UnpackDeviceHandle and one NetUnpackMeta; a GPU has one bounce region for
// all of them. A receive uses the slot (H0 + 1 + k) mod 16, where k counts the Simple receives of its
// communicator in posting order and H0 is the handle's head at the start; with H0 = 2^64 - 1 that is k
// mod 16.
//
//   plugin: writes mem[slot][0..n), then cnt[slot] = n (release), then reports the receive as done
//   GPU:    reads cnt[slot] once, copies  bounce + src_off -> data + dst_off,  len bytes, for each descriptor
//   plugin: in irecvConsumed writes cnt[slot] = 0 and recycles the pages
//
// cnt[slot] is 0 at every other time: NCCL's kernels loop for ever on a stale count after an abort.
#ifndef VERBENA_UNPACK_ABI_H
#define VERBENA_UNPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

namespace verbena {

constexpr int kUnpackQueueDepthSlots = 16;        // receives between irecv and irecvConsumed; NCCL keeps <= 8
constexpr int kUnpackMaxDescriptors = 2048;       // of one slot; the GPU does not check it, the plugin must
constexpr size_t kUnpackMaxSliceBytes = 4194304;  // 4 MiB: the largest receive that is staged
constexpr size_t kUnpackPageBytes = 4096;         // NCCL's idea of a page; a descriptor may be of any length
constexpr size_t kUnpackBounceAlignmentBytes =
    16;  // of bounce_buf: alignment is judged from the offsets alone
constexpr uint64_t kUnpackFreshHead = ~uint64_t(0);  // H0: the first receive takes slot 0

// One piece of a message: written by the plugin, read by one warp as one 16-byte load. Bytes. Pieces of one
// slot are copied in parallel and must not overlap at the destination. len 0 is harmless.
struct alignas(16) LoadMeta {
  uint32_t src_off;  // from bounce_buf: a bounce region spans at most 4 GiB
  uint32_t len;
  uint64_t dst_off;  // from the `data` pointer of the irecv
};
static_assert(sizeof(LoadMeta) == 16 && alignof(LoadMeta) == 16, "NCCL's descriptor");
static_assert(offsetof(LoadMeta, len) == 4 && offsetof(LoadMeta, dst_off) == 8, "NCCL's descriptor");

// Lives in memory that both sides reach (pinned and mapped for the GPU); owned and freed by the plugin
// (closeRecv).
struct NetUnpackMeta {
  LoadMeta mem[kUnpackQueueDepthSlots][kUnpackMaxDescriptors];
  uint64_t cnt[kUnpackQueueDepthSlots];  // valid descriptors of each slot
};
static_assert(sizeof(NetUnpackMeta) == 524416 && offsetof(NetUnpackMeta, cnt) == 524288,
              "NCCL's unpack queue");

// Lives in the receiving GPU's memory, owned and freed by the plugin. The plugin writes it once, before
// accept returns the communicator; after that only the GPU touches it: it loads all three at the start of a
// primitive and stores head at the end.
struct UnpackDeviceHandle {
  NetUnpackMeta* meta;  // address valid on the GPU
  void* bounce_buf;     // address valid on the GPU; the same for all receive communicators of one GPU
  uint64_t head;        // incremented before each slot's use; never wraps in practice
};
static_assert(sizeof(UnpackDeviceHandle) == 24, "NCCL's device handle");
static_assert(offsetof(UnpackDeviceHandle, bounce_buf) == 8 && offsetof(UnpackDeviceHandle, head) == 16, "");

}  // namespace verbena

#endif
