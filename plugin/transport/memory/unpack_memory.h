// The memory behind the unpack queues of one GPU's connections. NCCL fixes the layout for one connection,
// half a megabyte with room for 2048 descriptors in each slot, but what is staged needs a few of them, all at
// the slot's start. So a block holds many queues, each beginning a little behind the one before: the slots of
// all lie side by side, and what a queue does not use is its neighbours'.
//
//   block + 0      slot 0 of queue 0, 1, 2 ...   (each `descriptors` x 16 bytes)
//   block + 32 KiB slot 1 of queue 0, 1, 2 ...
//   ...
//   block + 512 KiB the counts of queue 0, 1, 2 ... at the same distance
//
// Nothing is given back before the pool goes: allocating and freeing pinned memory may wait for the GPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/unpack_abi.h"

namespace verbena::transport {

// What one connection has.
class UnpackMemory {
 public:
  // For the CPU. Only the first descriptors() of each slot are this queue's.
  NetUnpackMeta* host_meta() const { return host_meta_; }
  uint32_t descriptors() const { return descriptors_; }
  // For the GPU: where the UnpackDeviceHandle is.
  void* device_handle() const { return device_handle_; }

 private:
  friend class UnpackMemories;
  NetUnpackMeta* host_meta_ = nullptr;
  NetUnpackMeta* device_meta_ = nullptr;
  void* device_handle_ = nullptr;
  const base::Buffer* handles_ = nullptr;
  size_t handle_offset_bytes_ = 0;
  uint32_t descriptors_ = 0;
};

// Thread safe.
class UnpackMemories {
 public:
  // A queue with room for `descriptors` in each slot, at most kUnpackMaxDescriptors, and a fresh handle.
  base::Result<std::unique_ptr<UnpackMemory>> take(uint32_t descriptors, void* bounce_base);
  // No GPU looks at it any more.
  void give_back(std::unique_ptr<UnpackMemory> memory);

 private:
  struct Block {
    base::Buffer metas;    // host
    base::Buffer handles;  // GPU memory
  };
  base::Outcome add_block(uint32_t descriptors);

  std::mutex mutex_;  // guards all below
  std::vector<std::unique_ptr<Block>> blocks_;
  std::map<uint32_t, std::vector<std::unique_ptr<UnpackMemory>>> spare_;  // by descriptors
};

}  // namespace verbena::transport
