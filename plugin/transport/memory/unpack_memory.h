// The memory of the unpack queues of one GPU's connections. NCCL fixes the layout for one connection: half a
// megabyte, with space for 2048 descriptors in each slot. A staged message needs only a few descriptors, all
// at the start of a slot. Therefore one block holds many queues, each of which begins at a small offset from
// the previous one. The slots of all queues are adjacent, and the part of a slot that one queue does not use
// belongs to the next queues.
//
//   block + 0      slot 0 of queue 0, 1, 2 ...   (each `descriptors` x 16 bytes)
//   block + 32 KiB slot 1 of queue 0, 1, 2 ...
//   ...
//   block + 512 KiB the counts of queue 0, 1, 2 ... at the same distance
//
// Memory is freed only with the pool, because allocating and freeing pinned memory may wait for the GPU.
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

// The unpack queue of one connection.
class UnpackMemory {
 public:
  // The address for the CPU. Only the first descriptors() of each slot belong to this queue.
  NetUnpackMeta* host_meta() const { return host_meta_; }
  uint32_t descriptors() const { return descriptors_; }
  // The address of the UnpackDeviceHandle for the GPU.
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
  // Returns a queue with space for `descriptors` in each slot, at most kUnpackMaxDescriptors, and with a new
  // handle.
  base::Result<std::unique_ptr<UnpackMemory>> take(uint32_t descriptors, void* bounce_base);
  // Returns a queue. No GPU may be using it.
  void give_back(std::unique_ptr<UnpackMemory> memory);

 private:
  struct Block {
    base::Buffer metas;    // host memory
    base::Buffer handles;  // GPU memory
  };
  base::Outcome add_block(uint32_t descriptors);

  std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<Block>> blocks_;
  std::map<uint32_t, std::vector<std::unique_ptr<UnpackMemory>>> spare_;  // by number of descriptors
};

}  // namespace verbena::transport
