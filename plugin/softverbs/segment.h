#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// A mapped segment, of this process or of a peer: memory without a name, which ends with the last process
// that has it, and which nobody can make shorter. Whatever a peer writes there that says where to read or
// write next leads to some place in the segment, never out of it.
class Segment {
 public:
  static std::unique_ptr<Segment> create();  // nullptr and errno on failure
  // The one that a process of this user has at its descriptor. EPERM: that is something else, or may be cut
  // off.
  static std::unique_ptr<Segment> open(int pid, int descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  int fd() const { return fd_; }
  SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  SharedMr& mr(uint32_t index) const { return at<SharedMr>(kMrTable)[index]; }
  SharedQp& qp(uint32_t index) const { return at<SharedQp>(kQpTable)[index]; }
  SharedCq& cq(uint32_t index) const { return at<SharedCq>(kCqTable)[index % kCqCount]; }
  SharedReceiveQueue& receive_queue(uint32_t index) const {
    return at<SharedReceiveQueue>(kReceiveQueueTable)[index < kReceiveQueueCount ? index : 0];
  }
  SharedPipe& async_pipe(uint32_t context) const { return header().async_pipes[context % kContextCount]; }
  // `bytes` of a ring at an offset that a peer may have written.
  template <typename T>
  T& inside(uint64_t offset, uint64_t bytes = sizeof(T)) const {
    constexpr uint64_t kAligned = ~uint64_t{7};
    return *at<T>(offset <= kSegmentBytes - bytes ? offset & kAligned : 0);
  }
  GpuServiceTable& gpu_service() const { return *at<GpuServiceTable>(kGpuService); }
  SharedGpu& gpu(uint32_t index) const { return at<SharedGpu>(kGpuTable)[index % kGpuCount]; }

  // Owner only: makes sure that there is memory, so that no later access can fault. 0 or an errno.
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

// Ring memory at the end of an own segment.
class Arena {
 public:
  explicit Arena(Segment& segment) : segment_(segment) {}
  uint64_t allocate(uint64_t bytes);  // zeroed; 0 and errno on failure
  // A place that was not allocated is left alone: a peer may have written the offset.
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

// Hands out table indices, the least recently freed late, so that stale numbers stay invalid for long. Where
// it begins is random, as numbers and keys that others should not guess are made of them.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t count);
  int64_t allocate();  // -1 when all are taken
  void free(uint32_t index);
  uint32_t get_high_water();  // all indices handed out so far are below

 private:
  const uint32_t first_;
  const uint32_t count_;
  std::mutex mutex_;
  std::vector<bool> used_;  // grows while more than half is in use: the table's memory follows the need
  uint32_t next_;
  uint32_t in_use_ = 0;
  uint32_t high_water_ = 0;
};

}  // namespace verbena::softverbs
