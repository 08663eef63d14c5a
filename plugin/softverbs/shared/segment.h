// The memory that a process shares with its peers (Segment), and two allocators for it: ring memory (Arena)
// and table indices (IndexPool). Only the owner's threads use the allocators, so a mutex is enough to protect
// them. A value that a peer has written is never used as an address without a check.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/shared/shared_layout.h"

namespace verbena::softverbs {

// A mapped segment of this process or of a peer. The memory of a segment has no name, exists until the last
// process closes it, and cannot shrink. An offset that a peer has written always leads to an address within
// the segment.
class Segment {
 public:
  static std::unique_ptr<Segment> create();  // nullptr and errno on failure
  // Opens the segment behind a descriptor of another process of this user. Fails with EPERM if the descriptor
  // is not a segment, or the segment could shrink.
  static std::unique_ptr<Segment> open(int pid, int descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  int fd() const { return fd_; }
  // Call this after the owner has ended: frees the memory and the descriptor. The mapping stays valid.
  void give_back();
  SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  SharedMr& mr(uint32_t index) const { return at<SharedMr>(kMrTable)[index]; }
  SharedQp& qp(uint32_t index) const { return at<SharedQp>(kQpTable)[index]; }
  SharedCq& cq(uint32_t index) const { return at<SharedCq>(kCqTable)[index % kCqCount]; }
  SharedReceiveQueue& receive_queue(uint32_t index) const {
    return at<SharedReceiveQueue>(kReceiveQueueTable)[index < kReceiveQueueCount ? index : 0];
  }
  SharedPipe& async_pipe(uint32_t context) const { return header().async_pipes[context % kContextCount]; }
  // Returns `bytes` bytes of a ring. A peer may have written the offset, so an invalid offset counts as 0.
  template <typename T>
  T& inside(uint64_t offset, uint64_t bytes = sizeof(T)) const {
    constexpr uint64_t kAligned = ~uint64_t{7};
    return *at<T>(offset <= kSegmentBytes - bytes ? offset & kAligned : 0);
  }
  GpuServiceTable& gpu_service() const { return *at<GpuServiceTable>(kGpuService); }
  SharedGpu& gpu(uint32_t index) const { return at<SharedGpu>(kGpuTable)[index % kGpuCount]; }

  // For the owner: allocates the memory now, so that no later access can fault. Returns 0 or an errno.
  int commit(uint64_t offset, uint64_t bytes);
  template <typename T>
  int commit(T& object) {
    return commit(reinterpret_cast<uint8_t*>(&object) - base_, sizeof(T));
  }

 private:
  Segment(int fd, uint8_t* base) : fd_(fd), base_(base) {}
  static std::unique_ptr<Segment> map(int fd);

  int fd_;
  uint8_t* base_;
  std::mutex mutex_;
  std::vector<bool> committed_;  // by block
};

// Allocates ring memory at the end of this process's segment.
class Arena {
 public:
  explicit Arena(Segment& segment) : segment_(segment) {}
  uint64_t allocate(uint64_t bytes);  // zeroed; 0 and errno on failure
  // Ignores an offset that was not allocated, because a peer may have written it.
  void free(uint64_t offset);

 private:
  uint64_t take(uint64_t bytes, uint64_t grain);
  void add_hole(uint64_t offset, uint64_t bytes);

  Segment& segment_;
  std::mutex mutex_;
  uint64_t end_ = kArena;
  std::map<uint64_t, uint64_t> holes_;  // bytes by offset, never adjacent
  std::map<uint64_t, uint64_t> taken_;  // bytes by offset
};

// Allocates table indices. A freed index is reused as late as possible, so that old numbers stay invalid for
// long. The first index is random, because queue pair numbers and keys contain indices, and other processes
// should not be able to guess them.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t count);
  int64_t allocate();  // -1 if none is free
  void free(uint32_t index);
  uint32_t get_high_water();  // one above the highest index ever allocated

 private:
  const uint32_t first_;
  const uint32_t count_;
  std::mutex mutex_;
  std::vector<bool>
      used_;  // grows when more than half is in use, so that the table takes only the memory it needs
  uint32_t next_;
  uint32_t in_use_ = 0;
  uint32_t high_water_ = 0;
};

}  // namespace verbena::softverbs
